#!/usr/bin/env python3
"""Check registrar.json: an implementation of the registrar's keys that shares no code with the core.

A key is sha256 over a label and fields, each with its length in four bytes in front, the highest
first (docs/registrar.md).
"""

import hashlib
import json
import sys
from pathlib import Path

MIN_CASES = 12


def key(label, *fields):
    joined = b""
    for field in (label, *fields):
        field = field.encode() if isinstance(field, str) else field
        joined += len(field).to_bytes(4, "big") + field
    return hashlib.sha256(joined).digest()


def logical_request_key(envelope):
    return key(
        "semel/logical-request/v1",
        envelope["domain"],
        envelope["operation"],
        envelope["canonical_target"],
        bytes.fromhex(envelope["artifact_hash"]),
        envelope["owner_binding"],
    )


def replay_key(envelope):
    return key(
        "semel/replay/v1",
        str(envelope["protocol_version"]),
        logical_request_key(envelope),
        envelope["operation"],
        envelope["canonical_target"],
        bytes.fromhex(envelope["artifact_hash"]),
        envelope["owner_binding"],
        envelope["run_id"],
    )


def main(arguments):
    path = Path(arguments[0]) if arguments else Path(__file__).with_name("registrar.json")
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    failures, seen = [], set()
    for case in cases:
        envelope, name = case["envelope"], case["name"]
        for field, got in (
            ("logical_request_key", logical_request_key(envelope).hex()),
            ("replay_key", replay_key(envelope).hex()),
        ):
            if case[field] != got:
                failures.append(f"{name}: {field}: expected {case[field]} got {got}")
        if name in seen:
            failures.append(f"{name}: the name is not unique")
        seen.add(name)
    if len(cases) < MIN_CASES:
        failures.append(f"{len(cases)} cases, at least {MIN_CASES} are needed")
    for failure in failures:
        print(f"FAIL {ascii(failure)}")
    print(f"{len(cases) - len(failures)} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
