#!/usr/bin/env python3
"""Check the request fingerprint vectors with a second implementation.

`fingerprint.json` holds the cases that every implementation of the request
fingerprint must agree on. This script computes each of them again from the
specification alone, with nothing but the Python standard library, and shares
no code with the implementation that the product ships. A mistake would have
to be made twice, independently, to get past both.

    fingerprint = sha256( "1" 00 destination_kind 00 destination_ref 00
                          reply_to_id or empty 00 priority 00
                          canonical meta 00 body_hash )

Usage: verify.py [fingerprint.json]

Prints one FAIL line per difference and then a count of the cases that passed
and of those that failed. The exit status is 1 when anything failed.
"""

import base64
import hashlib
import math
import re
import sys
from pathlib import Path

ENVELOPE_VERSION = "1"
DESTINATION_KINDS = ("topic", "dm", "queue")
PRIORITIES = ("now", "next", "low")
DEFAULT_PRIORITY = "next"
REQUIRED_FIELDS = ("destination_kind", "destination_ref")
BODY_FIELDS = ("message", "body_base64")
ALLOWED_FIELDS = {*REQUIRED_FIELDS, *BODY_FIELDS, "reply_to_id", "priority", "meta"}

MAX_SAFE_INTEGER = 2**53 - 1
MAX_FIELD_BYTES = 255
MAX_META_BYTES = 16384
# Meta may nest 64 levels, itself included, and the envelope is one more.
MAX_ENVELOPE_DEPTH = 64 + 1
# In the vector file an envelope sits inside the file's object, the list of
# cases and the case, so this limit still allows it exactly its own depth.
MAX_FILE_DEPTH = MAX_ENVELOPE_DEPTH + 3

MIN_CASES = 60
INPUT_KEYS = ("envelope", "raw", "raw_base64")
RESULT_KEYS = ("canonical_meta", "body_hash", "fingerprint")


class Refusal(Exception):
    """An envelope that must not be fingerprinted, with the code that says why."""

    def __init__(self, code, detail):
        super().__init__(f"{code}: {detail}")
        self.code = code


# --- Strict JSON -------------------------------------------------------------
#
# The json module is too lenient for this: it takes NaN, lone surrogates and
# repeated keys, and turns a number that overflows into infinity.

WHITESPACE = re.compile(r"[ \t\n\r]*")
# Everything that could belong to a number or a word is taken as one piece, so
# that 01, 1. and nullx are grammar errors and never a valid start plus rest.
SCALAR = re.compile(r"[-+.0-9A-Za-z]*")
NUMBER = re.compile(r"-?(?P<digits>0|[1-9][0-9]*)(?P<rest>(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)")
PLAIN_TEXT = re.compile(r'[^"\\\x00-\x1f]*')
FOUR_HEX = re.compile(r"[0-9A-Fa-f]{4}")
WORDS = {"true": True, "false": False, "null": None}
SHORT_ESCAPES = {
    '"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
}


def parse_json(data, max_depth=MAX_ENVELOPE_DEPTH):
    """Parse one JSON document from UTF-8 bytes; raise Refusal for anything unsound.

    Every number becomes a float, because the canonical form knows only doubles.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refusal("invalid_json", f"not UTF-8: {error.reason}") from None
    return Parser(text, max_depth).document()


def number_value(match):
    """Read a NUMBER match as the nearest double, unless it is out of range."""
    literal, digits = match[0], match["digits"]
    if not match["rest"]:
        # The length goes first: int() refuses strings of thousands of digits.
        if len(digits) > len(str(MAX_SAFE_INTEGER)) or int(digits) > MAX_SAFE_INTEGER:
            raise Refusal("integer_out_of_range", literal[:20])
    value = float(literal)
    if math.isinf(value):
        raise Refusal("number_out_of_range", literal[:20])
    return value


class Parser:
    """A recursive descent parser; the depth limit also bounds its own recursion."""

    def __init__(self, text, max_depth):
        self.text = text
        self.max_depth = max_depth
        self.pos = 0
        self.depth = 0

    def document(self):
        value = self.value()
        if self.peek():
            raise self.invalid("text after the document")
        return value

    def value(self):
        char = self.peek()
        if char == "{":
            return self.nested(self.object)
        if char == "[":
            return self.nested(self.array)
        if char == '"':
            return self.string()
        return self.scalar()

    def nested(self, parse):
        self.depth += 1
        if self.depth > self.max_depth:
            raise Refusal("nesting_too_deep", f"at character {self.pos}")
        self.pos += 1
        value = parse()
        self.depth -= 1
        return value

    def object(self):
        members = {}
        if self.accept("}"):
            return members
        while True:
            self.peek()
            key = self.string()
            # Compared after unescaping: "a" and "\u0061" are the same key.
            if key in members:
                raise Refusal("duplicate_key", ascii(key))
            self.expect(":")
            members[key] = self.value()
            if self.accept("}"):
                return members
            self.expect(",")

    def array(self):
        items = []
        if self.accept("]"):
            return items
        while True:
            items.append(self.value())
            if self.accept("]"):
                return items
            self.expect(",")

    def scalar(self):
        literal = self.take(SCALAR)
        if literal in WORDS:
            return WORDS[literal]
        match = NUMBER.fullmatch(literal)
        if match is None:
            raise self.invalid("expected a value")
        return number_value(match)

    def string(self):
        if self.next_char() != '"':
            raise self.invalid("expected a string")
        parts = []
        while True:
            parts.append(self.take(PLAIN_TEXT))
            char = self.next_char()
            if char == '"':
                return "".join(parts)
            if char != "\\":
                raise self.invalid("unfinished string or raw control character")
            parts.append(self.escape())

    def escape(self):
        char = self.next_char()
        if char == "u":
            return self.unicode_escape()
        if char in SHORT_ESCAPES:
            return SHORT_ESCAPES[char]
        raise self.invalid("unknown escape")

    def unicode_escape(self):
        """Finish a \\u escape, together with the second half of a surrogate pair."""
        unit = self.code_unit()
        if not 0xD800 <= unit <= 0xDFFF:
            return chr(unit)
        if unit <= 0xDBFF and self.text.startswith("\\u", self.pos):
            self.pos += 2
            low = self.code_unit()
            if 0xDC00 <= low <= 0xDFFF:
                return chr(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00))
        raise Refusal("lone_surrogate", f"\\u{unit:04x} before character {self.pos}")

    def code_unit(self):
        # Not int() alone, which would also take "+123", " 123" and "1_23".
        digits = self.take(FOUR_HEX)
        if not digits:
            raise self.invalid("expected four hexadecimal digits")
        return int(digits, 16)

    def take(self, pattern):
        """Consume what the pattern matches here; the empty string if nothing does."""
        match = pattern.match(self.text, self.pos)
        if match is None:
            return ""
        self.pos = match.end()
        return match[0]

    def next_char(self):
        """Consume one character; the empty string at the end of the text."""
        char = self.text[self.pos : self.pos + 1]
        self.pos += len(char)
        return char

    def peek(self):
        """Skip whitespace and show the next character without consuming it."""
        self.take(WHITESPACE)
        return self.text[self.pos : self.pos + 1]

    def accept(self, char):
        if self.peek() != char:
            return False
        self.pos += 1
        return True

    def expect(self, char):
        if not self.accept(char):
            raise self.invalid(f"expected {char!r}")

    def invalid(self, detail):
        return Refusal("invalid_json", f"{detail} at character {self.pos}")


# --- Canonical JSON (RFC 8785) -----------------------------------------------

MUST_ESCAPE = re.compile(r'["\\\x00-\x1f]')
CANONICAL_ESCAPES = {
    '"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r",
}


def canonical_json(value):
    """Serialize a parsed value in the one form that RFC 8785 allows."""
    # Compared by identity, because 1.0 == True in Python.
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return canonical_string(value)
    if isinstance(value, float):
        return canonical_number(value)
    if isinstance(value, list):
        return "[" + ",".join(map(canonical_json, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(map(canonical_member, sorted_members(value))) + "}"
    raise TypeError(f"not a parsed JSON value: {type(value).__name__}")


def sorted_members(members):
    """Order members by the UTF-16 code units of their keys.

    Python orders strings by code point, which puts U+FF5E before an emoji;
    the emoji's surrogates (D800 to DFFF) come first in UTF-16. Big-endian
    bytes compare exactly as the code units do.
    """
    return sorted(members.items(), key=lambda member: member[0].encode("utf-16-be"))


def canonical_member(member):
    key, value = member
    return canonical_string(key) + ":" + canonical_json(value)


def canonical_string(text):
    return '"' + MUST_ESCAPE.sub(escape_character, text) + '"'


def escape_character(match):
    char = match[0]
    return CANONICAL_ESCAPES.get(char) or f"\\u{ord(char):04x}"


def canonical_number(value):
    """Format a finite double as ECMAScript's Number::toString does."""
    if value == 0:
        return "0"  # Minus zero too.
    if value < 0:
        return "-" + canonical_number(-value)
    digits, point = shortest_digits(value)
    count = len(digits)
    if count <= point <= 21:
        return digits + "0" * (point - count)
    if 0 < point <= 21:
        return digits[:point] + "." + digits[point:]
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    mantissa = digits if count == 1 else digits[0] + "." + digits[1:]
    return f"{mantissa}e{point - 1:+d}"


def shortest_digits(value):
    """Split a positive double into digits and the place of the decimal point.

    The value is 0.DIGITS times ten to the power of the place. Python's repr
    picks the same digits as ECMAScript, the shortest that read back as the
    same double, and differs only in where it starts to use an exponent.
    """
    mantissa, _, exponent = repr(value).partition("e")
    whole, _, fraction = mantissa.partition(".")
    point = len(whole) + int(exponent or 0)
    digits = (whole + fraction).lstrip("0")
    point -= len(whole + fraction) - len(digits)
    return digits.rstrip("0"), point


# --- The envelope ------------------------------------------------------------


def fingerprint_document(data):
    """Fingerprint an envelope given as the bytes of a JSON document."""
    return fingerprint_envelope(parse_json(data))


def fingerprint_envelope(envelope):
    """Fingerprint an envelope that parse_json has read.

    Returns the canonical meta, the body hash and the fingerprint under their
    names in the vector file. The checks run in the order in which refusals
    take precedence.
    """
    check_fields(envelope)
    kind = choice(envelope, "destination_kind", DESTINATION_KINDS)
    ref = destination_ref(envelope, kind)
    reply_to_id = reply_to(envelope)
    priority = priority_of(envelope)
    meta = meta_of(envelope)
    body_hash = sha256_hex(body_of(envelope))
    canonical_meta = canonical_meta_of(meta)

    fields = (ENVELOPE_VERSION, kind, ref, reply_to_id, priority, canonical_meta, body_hash)
    joined = b"\x00".join(field.encode("utf-8") for field in fields)
    return {
        "canonical_meta": canonical_meta,
        "body_hash": body_hash,
        "fingerprint": sha256_hex(joined),
    }


def sha256_hex(data):
    return hashlib.sha256(data).hexdigest()


def check_fields(envelope):
    if not isinstance(envelope, dict):
        raise Refusal("invalid_field", "the envelope is not an object")
    unknown = envelope.keys() - ALLOWED_FIELDS
    if unknown:
        raise Refusal("unknown_field", ascii(min(unknown)))
    for name in REQUIRED_FIELDS:
        if name not in envelope:
            raise Refusal("missing_field", name)
    if not any(name in envelope for name in BODY_FIELDS):
        raise Refusal("missing_field", " or ".join(BODY_FIELDS))


def string_field(envelope, name):
    value = envelope[name]
    if not isinstance(value, str):
        raise Refusal("invalid_field", f"{name} is not a string")
    return value


def choice(envelope, name, allowed):
    value = string_field(envelope, name)
    if value not in allowed:
        raise Refusal("invalid_field", f"{name} is not one of {', '.join(allowed)}")
    return value


def identifier(envelope, name):
    """A short string that goes into the hash as it is."""
    value = string_field(envelope, name)
    # The zero byte separates the hashed fields; inside one, it would let two
    # different envelopes produce the same bytes.
    if "\x00" in value:
        raise Refusal("nul_in_field", name)
    if not 1 <= len(value.encode("utf-8")) <= MAX_FIELD_BYTES:
        raise Refusal("invalid_field", f"{name} is not 1 to {MAX_FIELD_BYTES} bytes long")
    return value


def destination_ref(envelope, kind):
    ref = identifier(envelope, "destination_ref")
    if kind == "dm" and not re.fullmatch(r"[0-9a-f]{64}", ref):
        raise Refusal("invalid_field", "destination_ref is not a public key in lower-case hex")
    return ref


def reply_to(envelope):
    if envelope.get("reply_to_id") is None:
        return ""
    return identifier(envelope, "reply_to_id")


def priority_of(envelope):
    if envelope.get("priority") is None:
        return DEFAULT_PRIORITY
    return choice(envelope, "priority", PRIORITIES)


def meta_of(envelope):
    # Unlike the optional strings, meta may not be null: it is an object or absent.
    meta = envelope.get("meta", {})
    if not isinstance(meta, dict):
        raise Refusal("invalid_field", "meta is not an object")
    return meta


def canonical_meta_of(meta):
    if not meta:
        return ""
    canonical = canonical_json(meta)
    if len(canonical.encode("utf-8")) > MAX_META_BYTES:
        raise Refusal("meta_too_large", f"over {MAX_META_BYTES} bytes")
    return canonical


def body_of(envelope):
    if all(name in envelope for name in BODY_FIELDS):
        raise Refusal("invalid_field", "both " + " and ".join(BODY_FIELDS))
    if "message" in envelope:
        return string_field(envelope, "message").encode("utf-8")
    encoded = string_field(envelope, "body_base64")
    try:
        return decode_base64(encoded)
    except ValueError:
        raise Refusal("invalid_field", "body_base64 is not strict base64") from None


def decode_base64(encoded):
    """Decode padded base64 in the standard alphabet; ValueError for anything else."""
    data = base64.b64decode(encoded, validate=True)
    # The decoder ignores stray bits in the last digit ("QR==" for "QQ=="), so
    # only the one spelling that encodes back to itself is taken.
    if base64.b64encode(data).decode("ascii") != encoded:
        raise ValueError("not the canonical spelling")
    return data


# --- The vectors -------------------------------------------------------------


def evaluate(case):
    """Compute a case's results, or {"error": code} if its envelope is refused."""
    try:
        if "envelope" in case:
            return fingerprint_envelope(case["envelope"])
        return fingerprint_document(raw_document(case))
    except Refusal as refusal:
        return {"error": refusal.code}


def raw_document(case):
    """The bytes of a case whose spelling matters, or that is not even UTF-8."""
    if "raw" in case:
        return case["raw"].encode("utf-8")
    return decode_base64(case["raw_base64"])


def is_base64(encoded):
    try:
        decode_base64(encoded)
    except ValueError:
        return False
    return True


def malformed(case):
    """What a case's form should be and what it is, or None if it is sound.

    Without this, a mistyped key could leave a case that checks nothing.
    """
    inputs = [key for key in INPUT_KEYS if key in case]
    if len(inputs) != 1:
        return f"exactly one of {', '.join(INPUT_KEYS)}", inputs
    if inputs[0] != "envelope" and not isinstance(case[inputs[0]], str):
        return f"a string in {inputs[0]}", case[inputs[0]]
    if inputs == ["raw_base64"] and not is_base64(case["raw_base64"]):
        return "strict base64 in raw_base64", case["raw_base64"]
    results = [key for key in (*RESULT_KEYS, "error") if key in case]
    if results not in ([*RESULT_KEYS], ["error"]):
        return f"error alone or all of {', '.join(RESULT_KEYS)}", results
    return None


def check_case(case):
    """List a case's differences as (field, expected, got)."""
    problem = malformed(case)
    if problem is not None:
        return [("form", *problem)]
    got = evaluate(case)
    fields = ("error",) if "error" in case or "error" in got else RESULT_KEYS
    return [
        (field, case.get(field), got.get(field))
        for field in fields
        if case.get(field) != got.get(field)
    ]


def check_cases(cases):
    """Check all cases; return how many passed, and the failures.

    A failure is (name, differences). The file as a whole can fail as well.
    """
    passed, failures, seen = 0, [], set()
    for number, case in enumerate(cases, start=1):
        name = case.get("name") if isinstance(case, dict) else None
        if not isinstance(name, str):
            failures.append((f"case {number}", [("name", "a string", name)]))
            continue
        differences = check_case(case)
        if name in seen:
            differences.append(("name", "a unique name", name))
        seen.add(name)
        if differences:
            failures.append((name, differences))
        else:
            passed += 1
    if len(cases) < MIN_CASES:
        failures.append(("file", [("cases", f"at least {MIN_CASES}", len(cases))]))
    return passed, failures


def load_cases(path):
    """Read the vector file as strictly as the envelopes in it."""
    document = parse_json(path.read_bytes(), MAX_FILE_DEPTH)
    cases = document.get("cases") if isinstance(document, dict) else None
    if not isinstance(cases, list):
        raise Refusal("invalid_field", "no list of cases")
    return cases


def main(arguments):
    path = Path(arguments[0]) if arguments else Path(__file__).with_name("fingerprint.json")
    try:
        passed, failures = check_cases(load_cases(path))
    except (OSError, Refusal) as error:
        passed, failures = 0, [("file", [(path.name, "a readable vector file", str(error))])]
    for name, differences in failures:
        for field, expected, got in differences:
            # Escaped, so that a difference is one line and no character hides.
            label = name.encode("unicode_escape").decode("ascii")
            print(f"FAIL {label}: {field}: expected {ascii(expected)} got {ascii(got)}")
    print(f"{passed} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
