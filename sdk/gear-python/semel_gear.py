"""The kit for gears written in Python: one file, no dependencies.

    from semel_gear import Worker, Problem

    worker = Worker()

    @worker.action("greet")
    def greet(context):
        context.log("on it")
        return {"text": "hello " + context.params["name"]}

    worker.run()

An action returns its result as JSON, or an Artifact with the path of a file in the workspace (the
current folder) for what has more than 1 MB. It raises Problem only when it has had no effect. Any
other exception, and a result that cannot be sent, ends the process: nobody can tell what was done
by then, and the attempt is uncertain.

What it prints goes to standard error, as does what its children print: the pipes to the host are
the kit's own.
"""

import fcntl
import hashlib
import hmac
import json
import os
import re
import signal
import sys
import threading
import traceback

DOCUMENT_BYTES_MAX = 1024 * 1024
LINE_BYTES_MAX = 20 + 1 + 64 + 1 + DOCUMENT_BYTES_MAX + 1
HANDOVER_BYTES_MAX = 48 * 1024
HANDOVER_FD = 3
REPORT_CHARS_MAX = 4096

# How a process ends that cannot tell what it has done (EX_SOFTWARE).
CANNOT_TELL = 70

_TO_GEAR = b"semel gear 1 to\0"
_FROM_GEAR = b"semel gear 1 from\0"
_LINE = re.compile(rb"(0|[1-9][0-9]{0,19}) ([0-9a-f]{64}) (.*)", re.DOTALL)


class Breach(Exception):
    """The host said something that is not to be believed."""


class Problem(Exception):
    """Why an action did not happen. Raise it only when it has had no effect."""

    def __init__(self, cls, code, message, retry_after_ms=None):
        super().__init__(message)
        if cls not in ("transient", "user_error", "resource_limit", "gear_bug"):
            raise ValueError("transient, user_error, resource_limit or gear_bug")
        self.cls, self.code, self.message = cls, code, message
        self.retry_after_ms = retry_after_ms


class Artifact:
    """A file of the workspace as the result of an action."""

    def __init__(self, path):
        self.path = path


class Resolved:
    """What a gear knows of an earlier attempt."""

    def __init__(self, state, result=None):
        self.state, self.result = state, result

    @classmethod
    def done(cls, result):
        return cls("done", result)

    @classmethod
    def not_done(cls):
        return cls("not_done")

    @classmethod
    def unknown(cls):
        return cls("unknown")


def code(key, direction, number, document):
    """The code of a line, as raw bytes."""
    message = direction + number.to_bytes(8, "big") + document
    return hmac.new(key, message, hashlib.sha256).digest()


class Context:
    """One execution, as its action sees it."""

    def __init__(self, worker, message):
        self._worker = worker
        self.execution_id = message["execution_id"]
        self.attempt = message.get("attempt", 0)
        self.action = message["action"]
        self.params = message["params"]
        self._cancelled = threading.Event()
        self._sub_jobs = 0
        self._asking = threading.Lock()
        self._ended = {}
        self._changed = threading.Condition()

    @property
    def is_cancelled(self):
        """Whether to stop."""
        return self._cancelled.is_set()

    def wait_cancelled(self, timeout=None):
        """Waits until it is time to stop; whether it is."""
        return self._cancelled.wait(timeout)

    def secret(self, name):
        """A secret that the manifest asks for and the operator has set."""
        return self._worker._secrets.get(name)

    def log(self, message, side_effect=False):
        """A line for the job's log; side_effect tells of an effect on the world."""
        message = str(message)[:REPORT_CHARS_MAX]
        self._worker._say({"type": "log", "message": message, "side_effect": bool(side_effect)})

    def progress(self, percent, message=None):
        """How far it is, 0 to 100."""
        said = {"type": "progress", "percent": max(0, min(100, int(percent)))}
        if message is not None:
            said["message"] = str(message)[:REPORT_CHARS_MAX]
        self._worker._say(said)

    def sub_job(self, asked):
        """Asks for a job and waits for its end. Ask in the same order in every attempt."""
        with self._asking:
            number = self._sub_jobs
            self._sub_jobs += 1
            self._worker._say({"type": "create_sub_job", "number": number, "asked": asked})
            with self._changed:
                while number not in self._ended:
                    self._changed.wait()
                ended = self._ended.pop(number)
        error = ended.get("error")
        if error is not None:
            known = ("transient", "user_error", "resource_limit")
            cls = error["class"] if error["class"] in known else "gear_bug"
            raise Problem(cls, error["code"], error["message"])
        return ended.get("value")

    def _sub_job_ended(self, message):
        with self._changed:
            self._ended[message["number"]] = message
            self._changed.notify_all()


class Worker:
    """A gear's actions."""

    def __init__(self):
        self._actions, self._resolvers = {}, {}
        self._secrets, self._key = {}, b""
        self._out, self._number = threading.Lock(), 0
        self._from_host, self._to_host = None, None
        self._context = None

    def action(self, name):
        """Decorates what an action does."""

        def keep(function):
            self._actions[name] = function
            return function

        return keep

    def resolver(self, name):
        """Decorates what tells what became of an earlier attempt (recovery = "resolve")."""

        def keep(function):
            self._resolvers[name] = function
            return function

        return keep

    def run(self):
        """Serves the host that started this process, until it is done with it."""
        try:
            self._take_over()
        except (OSError, ValueError, KeyError):
            sys.exit("there is no key on descriptor 3; a gear is run by semel (try: semel gear test)")
        self._take_pipes()
        # Told by a message as well; the process ends in its own time, or is killed.
        signal.signal(signal.SIGTERM, lambda *_: self._cancel())
        expected = 0
        while True:
            line = self._from_host.readline(LINE_BYTES_MAX)
            if not line:
                break
            self._heard(self._document(line, expected))
            expected += 1
        self._cancel()
        _end(0)

    def _take_pipes(self):
        """Keeps the pipes to the host for itself: what is printed goes to standard error, and there
        is nothing to read. Children inherit neither."""

        def own(fd):
            return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)

        self._from_host, self._to_host = os.fdopen(own(0), "rb"), os.fdopen(own(1), "wb")
        empty, end = os.pipe()
        os.close(end)
        os.dup2(empty, 0)
        os.close(empty)
        os.dup2(2, 1)
        # What was printed before this moment waits in a buffer and follows.
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(line_buffering=True)

    def _take_over(self):
        pieces, size = [], 0
        while size <= HANDOVER_BYTES_MAX:
            piece = os.read(HANDOVER_FD, HANDOVER_BYTES_MAX)
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
        os.close(HANDOVER_FD)
        handover = json.loads(b"".join(pieces))
        self._key, self._secrets = bytes.fromhex(handover["key"]), handover["secrets"]

    def _document(self, line, expected):
        match = _LINE.fullmatch(line[:-1]) if line.endswith(b"\n") else None
        if match is None:
            raise Breach("a line is malformed or too long")
        number, document = int(match[1]), match[3]
        found = bytes.fromhex(match[2].decode())
        # A number beyond 64 bits has no code.
        proven = number < 2**64 and hmac.compare_digest(
            found, code(self._key, _TO_GEAR, number, document)
        )
        if not proven or number != expected:
            raise Breach("a line is forged, repeated or missing")
        return json.loads(document)

    def _heard(self, message):
        kind = message.get("type")
        if kind in ("execute", "resolve"):
            self._context = Context(self, message)
            work = self._execute if kind == "execute" else self._resolve
            threading.Thread(target=work, args=(self._context,), daemon=True).start()
        elif kind == "cancel":
            self._cancel()
        elif kind == "sub_job_ended" and self._context is not None:
            self._context._sub_job_ended(message)

    def _cancel(self):
        if self._context is not None:
            self._context._cancelled.set()

    def _execute(self, context):
        try:
            action = self._actions.get(context.action)
            try:
                if action is None:
                    text = "this gear has no action " + context.action
                    raise Problem("gear_bug", "no_such_action", text)
                said = {"type": "result", **_result(action(context))}
            except Problem as problem:
                said = {"type": "error", "class": problem.cls, "code": problem.code,
                        "message": problem.message}
                if problem.retry_after_ms is not None:
                    said["retry_after_ms"] = problem.retry_after_ms
            self._say(said)
        except BaseException:
            # It may have had its effect: whoever says "failed" now invites to do it again.
            traceback.print_exc()
            _end(CANNOT_TELL)

    def _resolve(self, context):
        try:
            resolver = self._resolvers.get(context.action)
            known = Resolved.unknown() if resolver is None else resolver(context)
            said = {"type": "resolved", "state": known.state}
            if known.state == "done":
                said.update(_result(known.result))
            self._say(said)
        except BaseException:
            traceback.print_exc()
            self._say({"type": "resolved", "state": "unknown"})

    def _say(self, message):
        document = json.dumps(message, allow_nan=False).encode()
        if len(document) > DOCUMENT_BYTES_MAX:
            raise ValueError("a message has more than 1 MB: write it to a file of the workspace")
        with self._out:
            made = code(self._key, _FROM_GEAR, self._number, document)
            line = b"%d %s %s\n" % (self._number, made.hex().encode(), document)
            self._number += 1
            self._to_host.write(line)
            self._to_host.flush()


def _end(status):
    """Ends the process at once, whatever its threads do."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _result(result):
    if isinstance(result, Artifact):
        return {"artifact": result.path}
    return {"value": result}
