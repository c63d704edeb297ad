"""A gear that tries what it must not, and reports what came of it."""

import ctypes
import errno
import fcntl
import hashlib
import hmac
import json
import mmap
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.request

import semel_gear
from semel_gear import Artifact, Problem, Resolved, Worker

worker = Worker()
libc = ctypes.CDLL(None, use_errno=True)


def outcome(attempt):
    """"done", or why not."""
    try:
        attempt()
        return "done"
    except MemoryError:
        return "MemoryError"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))


def call(number, *arguments):
    """A system call as such."""

    def attempt():
        if libc.syscall(number, *arguments) == -1:
            raise OSError(ctypes.get_errno(), "refused")

    return outcome(attempt)


def attributes(file, folder):
    """Of what is open to be read, and who is told of it."""
    return {
        "FS_IOC_SETFLAGS": outcome(lambda: fcntl.ioctl(file, 0x40086602, bytes(8))),
        "FS_IOC32_SETFLAGS": outcome(lambda: fcntl.ioctl(file, 0x40046602, bytes(8))),
        "FS_IOC_SETVERSION": outcome(lambda: fcntl.ioctl(file, 0x40087602, bytes(8))),
        "FS_IOC_FSSETXATTR": outcome(lambda: fcntl.ioctl(file, 0x401C5820, bytes(28))),
        "FS_IOC_ENABLE_VERITY": outcome(lambda: fcntl.ioctl(file, 0x40806685, bytes(128))),
        "F_SETLEASE": outcome(lambda: fcntl.fcntl(file, 1024, fcntl.F_RDLCK)),
        "F_NOTIFY": outcome(lambda: fcntl.fcntl(folder, 1026, fcntl.DN_MODIFY)),
    }


@worker.action("files")
def files(context):
    def read(path):
        with open(path, "rb") as file:
            file.read(1)

    def write(path):
        with open(path, "ab") as file:
            file.write(b"x")

    found = {"read": {}, "write": {}, "list": {}, "change": {}}
    for path in context.params["read"]:
        found["read"][path] = outcome(lambda: read(path))
    for path in context.params["write"]:
        found["write"][path] = outcome(lambda: write(path))
    for path in context.params["list"]:
        found["list"][path] = outcome(lambda: os.listdir(path))
    for path in context.params["change"]:
        found["change"]["chmod " + path] = outcome(lambda: os.chmod(path, 0o777))
        found["change"]["chown " + path] = outcome(lambda: os.chown(path, 0, 0))
        found["change"]["utime " + path] = outcome(lambda: os.utime(path, (0, 0)))
        found["change"]["remove " + path] = outcome(lambda: os.remove(path))
        found["change"]["rename " + path] = outcome(lambda: os.rename(path, "stolen"))
        found["change"]["link " + path] = outcome(lambda: os.link(path, "stolen"))
        os.symlink(path, "link")
        found["change"]["through a link " + path] = outcome(lambda: read("link"))
        os.remove("link")
    package = os.path.dirname(os.path.abspath(__file__))
    found["package"] = {
        "read": outcome(lambda: read(package + "/main.py")),
        "write": outcome(lambda: write(package + "/main.py")),
        "add": outcome(lambda: write(package + "/new.py")),
        "fchmod": outcome(lambda: os.fchmod(os.open(package, os.O_RDONLY), 0o777)),
        "fchmod of the system": outcome(lambda: os.fchmod(os.open("/bin/sh", os.O_RDONLY), 0o755)),
        "xattr": outcome(lambda: os.setxattr(os.open(package, os.O_RDONLY), "user.a", b"b")),
        "set-user-ID": outcome(lambda: os.open("lent", os.O_CREAT | os.O_WRONLY, 0o4755)),
        "set-group-ID": outcome(lambda: os.open("lent", os.O_CREAT | os.O_WRONLY, 0o2755)),
        "set-user-ID without a name": outcome(lambda: os.open(".", os.O_TMPFILE | os.O_RDWR, 0o4755)),
        "set-user-ID by mknod": outcome(lambda: os.mknod("lent", stat.S_IFREG | 0o4755)),
        **attributes(os.open(package + "/main.py", os.O_RDONLY), os.open(package, os.O_RDONLY)),
    }
    found["workspace"] = outcome(lambda: write("mine"))
    return found


@worker.action("network")
def network(context):
    address = ("127.0.0.1", context.params["port"])
    found = {}

    def connect(family, kind, to):
        with socket.socket(family, kind) as opened:
            opened.settimeout(2)
            opened.connect(to)
            opened.send(b"x")

    found["tcp"] = outcome(lambda: connect(socket.AF_INET, socket.SOCK_STREAM, address))
    found["udp"] = outcome(lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, address))
    found["tcp6"] = outcome(lambda: connect(socket.AF_INET6, socket.SOCK_STREAM,
                                            ("::1", context.params["port"])))
    found["unix"] = outcome(lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM,
                                            context.params["socket"]))
    found["abstract"] = outcome(lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM,
                                                "\0" + context.params["socket"]))
    found["netlink"] = outcome(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
    found["raw"] = outcome(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
    found["packet"] = outcome(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
    found["io_uring"] = call(425, 1, 0)
    return found


@worker.action("pairs")
def pairs(context):
    """A connected pair needs no path to begin with; may it be sent, or connected, to one?"""
    path = context.params["socket"]

    def reach(kind):
        one, other = socket.socketpair(socket.AF_UNIX, kind)
        try:
            one.sendto(b"x", path)
        except OSError:
            one.connect(path)
            one.send(b"x")

    def talk():
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        one.send(b"x")
        other.recv(1)

    return {
        "a pair of streams": outcome(talk),
        "from a pair of streams": outcome(lambda: reach(socket.SOCK_STREAM)),
        "from a pair of datagrams": outcome(lambda: reach(socket.SOCK_DGRAM)),
    }


@worker.action("hidden_memory")
def hidden_memory(context):
    return {
        "memfd_create": call(319, b"hidden", 0),
        "shmget": call(29, 0, 1 << 20, 0o1600),
        "msgget": call(68, 0, 0o1600),
        "semget": call(64, 0, 1, 0o1600),
        "mq_open": call(240, b"hidden", 0o102, 0o600, 0),
    }


@worker.action("watch")
def watch(context):
    """What becomes of files that may not be opened, told by the kernel."""
    path = context.params["path"].encode()
    found = {
        "inotify_init": call(253),
        "inotify_init1": call(294, 0),
        "inotify_add_watch": call(254, 0, path, 0xFFF),
        "fanotify_init": call(300, 0, 0),
        "fanotify_mark": call(301, 0, 1, 0x2, -100, path),
    }
    return found


@worker.action("dig")
def dig(context):
    """Folders in folders, deeper than any path."""
    for _ in range(context.params["levels"]):
        os.mkdir("d")
        os.chdir("d")
    return "deep"


@worker.action("fill")
def fill(context):
    """Many files, each of a size that is allowed."""
    number = 0
    while True:
        number += 1
        with open(f"file{number}", "wb") as file:
            for _ in range(7):
                file.write(b"x" * (1 << 20))


held = []


def hoard(how):
    """Twenty files of seven megabytes, which a walk through the folder sees or does not."""
    for number in range(20):
        if how == "never named":
            opened = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
        else:
            opened = os.open(f"hoard{number}", os.O_CREAT | os.O_RDWR, 0o600)
        for _ in range(7):
            os.write(opened, b"x" * (1 << 20))
        if how in ("unlinked", "mapped"):
            os.unlink(f"hoard{number}")
        if how == "mapped":
            held.append(mmap.mmap(opened, 7 << 20))
        if how in ("unlinked", "never named"):
            held.append(opened)
        else:
            os.close(opened)


@worker.action("hoard")
def hoard_now(context):
    if context.params.get("orphan") and os.fork() == 0:
        if os.fork() == 0:
            # Until nobody of the gear is its parent any more.
            while not os.path.exists("left"):
                time.sleep(0.001)
            hoard(context.params["how"])
            time.sleep(1000)
        os._exit(0)
    if context.params.get("orphan"):
        os.wait()
        open("left", "w").close()
    else:
        hoard(context.params["how"])
    time.sleep(1000)


@worker.resolver("hoard")
def hoard_when_asked(context):
    hoard("named")
    time.sleep(1000)


@worker.action("hoard_later")
def hoard_later(context):
    """Begins when nobody looks any more."""
    threading.Timer(0.5, hoard, ["named"]).start()
    return "for now nothing"


swapping = None


@worker.action("swap")
def swap(context):
    """A folder that is a link to somewhere else half of the time, also while it is looked at."""
    global swapping
    if swapping is not None:
        os.kill(swapping, signal.SIGKILL)
        os.waitpid(swapping, 0)
    place = str(time.monotonic_ns())
    os.makedirs(place + "/real")
    with open(place + "/real/file", "w") as file:
        file.write("mine")
    os.symlink(context.params["outside"], place + "/link")
    real, link = (place + "/real").encode(), (place + "/link").encode()
    swapping = os.fork()
    while swapping == 0:
        call(316, -100, real, -100, link, 2)
    return Artifact(place + "/real/file")


@worker.action("swap_file")
def swap_file(context):
    """The same of the file itself."""
    os.mkdir("swapped")
    with open("swapped/file", "w") as file:
        file.write("mine")
    os.symlink(context.params["outside"] + "/file", "swapped/link")
    real, link = b"swapped/file", b"swapped/link"
    if os.fork() == 0:
        while True:
            call(316, -100, real, -100, link, 2)
    return Artifact("swapped/file")


@worker.action("fetch")
def fetch(context):
    try:
        with urllib.request.urlopen(context.params["url"], timeout=10) as answer:
            return {"status": answer.status, "text": answer.read().decode()}
    except urllib.error.HTTPError as error:
        return {"status": error.code, "text": ""}


@worker.action("environment")
def environment(context):
    opened = []
    for number in range(256):
        try:
            os.fstat(number)
            opened.append(number)
        except OSError:
            pass
    return {
        "variables": dict(os.environ),
        "descriptors": opened,
        "arguments": sys.argv,
        "secret": context.secret("token"),
        "user": os.getuid(),
        "handed over again": outcome(lambda: os.read(3, 1)),
    }


@worker.action("leak")
def leak(context):
    context.log("it is " + context.secret("token"))
    print("stderr: " + context.secret("token"), file=sys.stderr, flush=True)
    os._exit(3)


@worker.action("processes")
def processes(context):
    engine = context.params["engine"]
    return {
        "kill the engine": outcome(lambda: os.kill(engine, signal.SIGKILL)),
        "see the engine": outcome(lambda: os.kill(engine, 0)),
        "kill the first": outcome(lambda: os.kill(1, signal.SIGKILL)),
        "read of the engine": outcome(lambda: open("/proc/%d/environ" % engine).read()),
        "files of the engine": outcome(lambda: os.listdir("/proc/%d/fd" % engine)),
        "list": outcome(lambda: os.listdir("/proc")),
        "ptrace": call(101, 16, engine, 0, 0),
        "process_vm_readv": call(310, engine, 0, 0, 0, 0, 0),
        "unshare": call(272, 0x10000000),
        "setns": call(308, 0, 0),
        "mount": call(165, b"none", b"/tmp", b"tmpfs", 0, 0),
        "chroot": call(161, b"/tmp"),
        "bpf": call(321, 0, 0, 0),
        "clone into a user namespace": call(56, 0x10000000 | 17, 0, 0, 0, 0),
        "clone3": call(435, 0, 0),
        "keyctl": call(250, 0, 0, 0, 0, 0),
        "personality": call(135, 0xffffffff),
        "raise the limit": outcome(raise_limit),
        "as x32": call(0x40000000 | 101, 0, 0, 0, 0),
        "attributes as x32": call(0x40000000 | 514, 0, 0x40046602, 0),
    }


def raise_limit():
    import resource
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100000, 100000))
    except ValueError:
        raise OSError(errno.EPERM, "refused")


@worker.action("fork_bomb")
def fork_bomb(context):
    children = 0
    try:
        for _ in range(5000):
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                while True:
                    time.sleep(1000)
            children += 1
        why = "none"
    except OSError as error:
        why = errno.errorcode[error.errno]
    return {"children": children, "why": why}


@worker.action("memory")
def memory(context):
    kept = []

    def take():
        while len(kept) < 64:
            kept.append(bytearray(64 << 20))

    found = outcome(take)
    mb = len(kept) * 64
    kept.clear()
    return {"outcome": found, "mb": mb}


@worker.action("big_file")
def big_file(context):
    def write():
        with open("big", "wb", buffering=0) as file:
            for _ in range(64):
                if file.write(bytes(1 << 20)) < 1 << 20:
                    raise OSError(errno.EFBIG, "cut")

    return {"outcome": outcome(write), "mb": os.path.getsize("big") >> 20}


@worker.action("spin")
def spin(context):
    while True:
        pass


@worker.action("flood_stderr")
def flood_stderr(context):
    for _ in range(200):
        sys.stderr.write("x" * (1 << 20))
    return "still here"


@worker.action("say")
def say(context):
    """Writes a line that is wrong in one way, then a right one that must not be believed."""
    how = context.params["how"]
    out = worker._to_host
    key = worker._key

    def line(number, document, key=key, direction=semel_gear._FROM_GEAR):
        made = semel_gear.code(key, direction, number, document).hex().encode()
        return b"%d %s %s\n" % (number, made, document)

    result = b'{"type":"result","value":"believed"}'
    log = b'{"type":"log","message":"a","side_effect":false}'
    lines = {
        "right": [line(0, log), line(1, result)],
        "forged": [line(0, result, key=bytes(32))],
        "changed": [line(0, log).replace(b'"a"', b'"b"'), line(1, result)],
        "unsigned": [result + b"\n"],
        "replayed": [line(0, log), line(0, log), line(1, result)],
        "reordered": [line(1, result), line(0, log)],
        "skipped": [line(0, log), line(2, result)],
        "reflected": [line(0, result, direction=semel_gear._TO_GEAR)],
        "unknown": [line(0, b'{"type":"please"}'), line(1, result)],
        "not json": [line(0, b"{"), line(1, result)],
        "not asked": [line(0, b'{"type":"resolved","state":"done"}'), line(1, result)],
    }
    if how == "oversized":
        for _ in range(1024):
            out.write(b"x" * (1 << 20))
        out.write(b"\n")
    elif how == "signed oversized":
        out.write(line(0, b'{"type":"result","value":"' + b"x" * (1 << 20) + b'"}'))
    else:
        for each in lines[how]:
            out.write(each)
    out.flush()
    time.sleep(1000)


@worker.action("asks_deaf")
def asks_deaf(context):
    """Asks once more as soon as it is told, by a file, that it was answered, and reads nothing."""
    context._sub_job_ended = lambda message: time.sleep(100000)
    for number in range(1000):
        document = b'{"type":"create_sub_job","number":%d,"asked":{}}' % number
        key, direction = worker._key, semel_gear._FROM_GEAR
        made = semel_gear.code(key, direction, number, document).hex().encode()
        worker._to_host.write(b"%d %s %s\n" % (number, made, document))
        worker._to_host.flush()
        while not os.path.exists("answered%d" % number):
            time.sleep(0.001)


@worker.action("stay")
def stay(context):
    """Leaves processes behind in every way there is, and does not listen."""
    marker = context.params["marker"]
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])

    def remain(name):
        os.execv("/bin/sleep", [marker + "-" + name, "100000"])

    if os.fork() == 0:
        remain("child")
    if os.fork() == 0:
        os.setsid()
        remain("session")
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for number in range(3):
                    os.close(number)
                remain("daemon")
            os._exit(0)
        os._exit(0)
    subprocess.Popen([sys.executable, "-c", FORKING, marker])
    # The end of the input is not heard either.
    worker._cancel = lambda: time.sleep(100000)
    context.log("ready")
    if context.params.get("crash"):
        os._exit(7)
    if context.params.get("result"):
        return "done"
    while True:
        time.sleep(1000)


FORKING = """
import os, sys, time
# A process that is never the same one. Should nobody end it, it ends itself: a test must not
# outlive its machine's patience.
end = time.monotonic() + 60
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.002)
"""


@worker.action("gentle")
def gentle(context):
    context.log("ready")
    context.wait_cancelled()
    raise Problem("transient", "cancelled", "nothing was done", retry_after_ms=5)


@worker.action("who")
def who(context):
    return {"pid": os.getpid(), "started": STARTED, "folder": os.getcwd()}


STARTED = time.monotonic_ns()


@worker.action("artifact")
def artifact(context):
    os.makedirs("out", exist_ok=True)
    with open("out/big", "wb") as file:
        file.write(b"y" * (2 << 20))
    if not os.path.islink("link"):
        os.symlink("/etc/passwd", "link")
    return Artifact(context.params["path"])


@worker.action("too_much")
def too_much(context):
    return "x" * (2 << 20)


@worker.action("raises")
def raises(context):
    raise RuntimeError("broken")


@worker.action("exits")
def exits(context):
    sys.exit("as if it were alone")


@worker.action("not_json")
def not_json(context):
    return {"set": {1, 2}}


@worker.action("not_a_number")
def not_a_number(context):
    return {"rate": float("nan")}


@worker.action("bad_problem")
def bad_problem(context):
    raise Problem("transient", "odd", {1, 2})


@worker.action("prints")
def prints(context):
    print("printed by the action")
    sys.stdout.flush()
    os.write(1, b"printed past Python\n")
    child = subprocess.run(["/bin/sh", "-c", "echo printed by a child; cat"], check=False)
    if context.params.get("crash"):
        os._exit(3)
    return {"read": sys.stdin.read(), "child": child.returncode}


@worker.action("logs_much")
def logs_much(context):
    context.log("\u00e9" * (2 << 20))
    context.progress(50, "x" * (2 << 20))
    return "done"


@worker.action("asks")
def asks(context):
    context.progress(50, "half")
    return context.sub_job({"request": "look"})


@worker.action("has_done")
def has_done(context):
    """In the operator's name. A reference as such would be one of this job's own plan."""
    asked = json.dumps(context.params["asked"]).replace("REF:", "$ref:")
    return context.sub_job(json.loads(asked))


@worker.action("gives")
def gives(context):
    """What a later step refers to."""
    return context.params["value"]


@worker.action("betrays")
def betrays(context):
    """Its secret, wherever there is room for a text that is not a result."""
    secret, how = context.secret("token"), context.params["how"]
    if how == "problem":
        raise Problem("user_error", secret, secret)
    if how == "class":
        document = json.dumps({"type": "error", "class": secret, "code": secret,
                               "message": secret}).encode()
        made = semel_gear.code(worker._key, semel_gear._FROM_GEAR, 0, document).hex().encode()
        worker._to_host.write(b"0 %s %s\n" % (made, document))
        worker._to_host.flush()
        time.sleep(1000)
    if how == "artifact":
        return Artifact(secret)
    if how == "file":
        with open(secret, "w") as file:
            file.write("nothing")
        return Artifact(secret)
    if how == "words":
        return context.sub_job({"request": secret})
    if how == "plan":
        step = {"id": secret, "gear": "hostile", "action": "gives", "params": {secret: secret}}
        return context.sub_job({"plan": {"steps": [step]}})
    os._exit(3)


@worker.resolver("betrays")
def resolve_betrays(context):
    secret = context.secret("token")
    if context.params["how"] == "resolved":
        return Resolved.done({secret: secret})
    return Resolved.done(Artifact(secret))


@worker.action("shouts")
def shouts(context):
    """Whatever a gear can say is what it was given."""
    text = context.params["text"]
    context.log(text)
    context.progress(50, text)
    print(text, file=sys.stderr, flush=True)
    if context.params.get("fails"):
        raise Problem("user_error", text, text)
    return {text: text}


@worker.resolver("who")
def resolve_who(context):
    return Resolved.done({"id": context.execution_id})


@worker.resolver("raises")
def resolve_raises(context):
    raise RuntimeError("broken")


@worker.resolver("not_a_number")
def resolve_not_a_number(context):
    return Resolved.done(float("nan"))


@worker.resolver("too_much")
def resolve_too_much(context):
    return Resolved.done("x" * (2 << 20))


@worker.resolver("prints")
def resolve_prints(context):
    return {"state": "done"}


worker.run()
