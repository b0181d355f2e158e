#!/usr/bin/python3
"""A random history of two clients of one server, one call after the other, each with a mount of its own. What a client has closed the other one opens.

  histories.py drive ADDRESS PORT DIR KIND SEED STEPS   makes up the history and does its own share of it in DIR
  histories.py follow ADDRESS PORT DIR                  does the rest in the same directory as the other client sees it

`careful` behind either: creates nothing without having looked for it. The kernel's client of NFSv3 does not look up a name that it has known to be
absent when it may create it (nfs_neg_need_reval), and does not cut what another client has made there meanwhile.

KIND is `contents` (the names stay), `names` (files come, go and move; mounts that believe no name) or `newcomers` (a client makes
a name that never was, in directories that both list, and the other one opens it more than a second later, for the first time).
"""
import errno, json, os, random, socket, sys, time

CAREFUL = sys.argv[-1] == "careful"
NAMES = [f"{d}/f{n}" for d in "xy" for n in range(3)]


def opened(path, how):
    if CAREFUL and how & os.O_CREAT:
        try:
            return os.open(path, os.O_WRONLY | how & ~os.O_CREAT)
        except FileNotFoundError:
            how |= os.O_EXCL
    return os.open(path, os.O_WRONLY | how, 0o644)


def act(where, call):
    """What a program would do: [None, result] or [errno, None]."""
    what, path = call["what"], f"{where}/{call['name']}"
    try:
        if what == "read":
            fd = os.open(path, os.O_RDONLY)
            size, parts = os.fstat(fd).st_size, []
            while part := os.read(fd, 1 << 20):
                parts.append(part.decode())
            os.close(fd)
            return [None, [size, "".join(parts)]]
        if what == "rename":
            os.rename(path, f"{where}/{call['to']}")
        elif what == "unlink":
            os.unlink(path)
        elif what == "list":
            os.listdir(path)
        else:
            how = {"write": os.O_CREAT | os.O_TRUNC, "append": os.O_CREAT | os.O_APPEND, "patch": 0, "cut": 0}[what]
            fd = opened(path, how)
            if what == "cut":
                os.ftruncate(fd, call["at"])
            elif what == "patch":
                os.pwrite(fd, call["data"].encode(), call["at"])
            else:
                os.write(fd, call["data"].encode())
            os.close(fd)
        return [None, None]
    except OSError as e:
        return [e.errno, None]


def expected(files, call):
    """The same by the model, which it changes."""
    what, name = call["what"], call["name"]
    if what in ("read", "patch", "cut", "rename", "unlink") and name not in files:
        return [errno.ENOENT, None]
    if what == "read":
        return [None, [len(files[name]), files[name]]]
    if what == "rename":
        files[call["to"]] = files[name]
        if call["to"] != name:
            del files[name]
    elif what == "unlink":
        del files[name]
    elif what == "list":
        pass
    elif what == "write":
        files[name] = call["data"]
    elif what == "append":
        files[name] = files.get(name, "") + call["data"]
    elif what == "patch":
        old, at, data = files[name].ljust(call["at"], "\0"), call["at"], call["data"]
        files[name] = old[:at] + data + old[at + len(data):]
    elif what == "cut":
        files[name] = files[name][: call["at"]].ljust(call["at"], "\0")
    return [None, None]


def make_up(rng, kind, step):
    changes = ["write", "append", "patch", "cut"] + ["rename", "rename", "unlink"] * (kind == "names")
    what = rng.choice(changes) if rng.random() < 0.5 else "read"
    call = {"what": what, "name": rng.choice(NAMES)}
    if what in ("write", "append", "patch"):
        call["data"] = f"[{step}]" + chr(97 + step % 26) * rng.choice([0, 10, 4090, 4096, 9000])
    if what in ("patch", "cut"):
        call["at"] = rng.choice([0, 3, 4095, 4096, 10_000])
    if what == "rename":
        call["to"] = rng.choice(NAMES)
    return call


def newcomers(rng, both, steps):
    """For how long a client may believe that a name is absent which it has not asked for: a second."""
    new = []
    for step in range(steps):
        who, name = rng.random() < 0.5, f"{rng.choice('xy')}/new{step}"
        both(rng.random() < 0.5, {"what": "list", "name": rng.choice("xy")})
        both(who, {"what": "write", "name": name, "data": name})
        new.append((not who, name))
        if rng.random() < 0.3:
            time.sleep(1.1)
            for who, name in new:
                both(who, {"what": "read", "name": name})
            new.clear()


def shown(call):
    return " ".join(f"{k}={v[:12] if isinstance(v, str) else v}" for k, v in call.items())


def drive(address, port, where, kind, seed, steps):
    rng, files, log = random.Random(seed), {}, []
    with socket.create_server((address, port)) as server:
        print("listening", flush=True)
        other, _ = server.accept()
    wire = other.makefile("rw")

    def follow(call):
        wire.write(json.dumps(call) + "\n")
        wire.flush()
        return json.loads(wire.readline())

    def both(who, call):
        log.append(f"{'this' if who else 'that'} {shown(call)}")
        want = expected(files, call)
        got = act(where, call) if who else follow(call)
        if got != want:
            look = {"what": "read", "name": call["name"]}
            views = {"got": got, "want": want, "this client now": act(where, look), "that one": follow(look)}
            brief = lambda r: [r[0], r[1] and [r[1][0], len(r[1][1]), r[1][1][:24]]]
            views = {what: brief(seen) for what, seen in views.items()}
            sys.exit(f"seed {seed} step {len(log)}: {views}, after {log[-25:]}")

    for name in NAMES:
        both(True, {"what": "write", "name": name, "data": name})
    if kind == "newcomers":
        newcomers(rng, both, steps // 3)
    for step in range(steps if kind != "newcomers" else 0):
        both(rng.random() < 0.5, make_up(rng, kind, step))
    for name in NAMES:
        for who in (True, False):
            both(who, {"what": "read", "name": name})
    wire.close()
    print(f"{len(log)} calls agree with the model", flush=True)


def main():
    mode, address, port, where = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    if mode == "drive":
        for d in "xy":
            os.mkdir(f"{where}/{d}")
        return drive(address, port, where, sys.argv[5], int(sys.argv[6]), int(sys.argv[7]))
    wire = socket.create_connection((address, port)).makefile("rw")
    for line in wire:
        wire.write(json.dumps(act(where, json.loads(line))) + "\n")
        wire.flush()


main()
