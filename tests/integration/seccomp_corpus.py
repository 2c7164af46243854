"""The work that the seccomp profiles `tuned` and `build` are made for.

Each item is a program that checks itself, and when all of it worked says `done`
and exits 0; it runs in an empty directory of its own. An item is small, so that it can be run
once for every call of a profile that it stands for. Without a call it may do anything:
so no pid goes into kill() unlooked at (without getpid, $$ is -1). What says more than
one line as it goes is not piped into grep -q, which leaves at the first match.
"""
import textwrap

PYTHON = "/usr/bin/python3"


def python(source):
    return [PYTHON, "-c", textwrap.dedent(source) + "\nprint('done')\n"]


def bash(source):
    return ["/bin/bash", "-c", "set -euo pipefail\n" + textwrap.dedent(source) + "\necho done\n"]


def sh(source):
    return ["/bin/sh", "-c", "set -eu\n" + textwrap.dedent(source) + "\necho done\n"]


TUNED = {
    "python-files": python("""
        import os, pathlib, stat
        os.mkdir("d")
        with open("d/a", "w") as f:
            f.write("one\\ntwo\\n")
        assert os.path.getsize("d/a") == 8 and os.access("d/a", os.R_OK)
        open("d/b", "w").close(); open("d/c", "w").close()
        os.rename("d/b", "d/e"); os.replace("d/e", "d/b")
        os.chmod("d/b", 0o600); assert stat.S_IMODE(os.stat("d/b").st_mode) == 0o600
        os.utime("d/b", (1, 2)); assert os.stat("d/b").st_mtime == 2
        assert sorted(e.name for e in os.scandir("d")) == ["a", "b", "c"]
        here = os.getcwd(); os.chdir("d"); assert os.getcwd() == here + "/d"; os.chdir("..")
        old = os.umask(0o077); assert os.umask(old) == 0o077
        assert pathlib.Path("d/a").read_text() == "one\\ntwo\\n"
        for name in ("a", "b", "c"): os.unlink("d/" + name)
        os.rmdir("d")
    """),
    "python-descriptors": python("""
        import fcntl, mmap, os
        fd = os.open("f", os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, 8192)
        assert os.pwrite(fd, b"abc", 4096) == 3 and os.pread(fd, 3, 4096) == b"abc"
        assert os.lseek(fd, 0, os.SEEK_END) == 8192
        os.fdatasync(fd); os.fchmod(fd, 0o600)
        fcntl.lockf(fd, fcntl.LOCK_EX); fcntl.lockf(fd, fcntl.LOCK_UN)
        with mmap.mmap(fd, 8192) as m:
            m[0:2] = b"xy"
        assert os.pread(fd, 2, 0) == b"xy"
        twin = os.dup(fd); os.dup2(fd, 50); os.set_inheritable(twin, True)
        r, w = os.pipe(); os.write(w, b"p"); assert os.read(r, 1) == b"p"
        assert not os.isatty(fd)
    """),
    "python-temporary": python("""
        import glob, json, os, shutil, tempfile, zipfile, tarfile, gzip, csv, pickle
        with tempfile.TemporaryDirectory(dir=".") as d:
            json.dump({"a": [1, 2.5, None]}, open(d + "/j", "w"))
            with zipfile.ZipFile(d + "/z", "w", zipfile.ZIP_DEFLATED) as z:
                z.write(d + "/j", "j"); z.writestr("k", "v" * 100000)
            with zipfile.ZipFile(d + "/z") as z:
                z.extractall(d + "/out"); assert z.testzip() is None
            with tarfile.open(d + "/t", "w:gz") as t: t.add(d + "/out", "out")
            with tarfile.open(d + "/t") as t: t.extractall(d + "/back")
            assert json.load(open(d + "/back/out/j")) == {"a": [1, 2.5, None]}
            shutil.copytree(d + "/out", d + "/copy"); shutil.copy2(d + "/j", d + "/j2")
            shutil.move(d + "/copy", d + "/moved"); shutil.rmtree(d + "/moved")
            with tempfile.NamedTemporaryFile(dir=d) as f: f.write(b"x"); f.flush()
            with tempfile.TemporaryFile(dir=d) as f: f.write(b"x")
            with gzip.open(d + "/g", "wb") as g: g.write(b"y" * 1000)
            assert len(glob.glob(d + "/*")) == 7, os.listdir(d)
        assert not os.path.exists(d)
    """),
    "python-sqlite": python("""
        import sqlite3
        for mode in ("delete", "wal", "truncate"):
            db = sqlite3.connect(f"{mode}.db")
            assert db.execute(f"pragma journal_mode={mode}").fetchone()[0] == mode
            db.execute("create table t (n integer primary key, s text)")
            with db:
                db.executemany("insert into t(s) values (?)", [("x" * 500,)] * 2000)
            with db:
                db.execute("delete from t where n % 2 = 0")
            db.execute("vacuum")
            assert db.execute("select count(*) from t").fetchone()[0] == 1000
            db.close()
    """),
    "python-threads": python("""
        import concurrent.futures, queue, threading, time
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(lambda n: n * n, range(100))) == 328350
        q, e = queue.Queue(), threading.Event()
        t = threading.Thread(target=lambda: (q.put(1), e.wait(5))); t.start()
        assert q.get(timeout=5) == 1
        e.set(); t.join(); time.sleep(0.001)
        lock = threading.Lock(); lock.acquire(); assert not lock.acquire(timeout=0.001)
        threading.Timer(0.001, lock.release).start(); assert lock.acquire(timeout=5)
        # The end of a thread is the end of its work, and of the process that of all threads.
        used = time.process_time(); time.sleep(0.1); assert time.process_time() - used < 0.05
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    """),
    "python-subprocess": python("""
        import os, signal, subprocess, sys
        out = subprocess.run(["cat"], input=b"abc" * 100000, capture_output=True, check=True).stdout
        assert len(out) == 300000
        assert subprocess.check_output("echo a; echo b | cat", shell=True) == b"a\\nb\\n"
        assert os.system("true; exit 3") == 3 << 8
        try: subprocess.run(["sleep", "9"], timeout=0.05)
        except subprocess.TimeoutExpired: pass
        else: raise AssertionError("no timeout")
        p = subprocess.Popen(["sleep", "9"], start_new_session=True, cwd="/", umask=0o22)
        p.send_signal(signal.SIGTERM); assert p.wait() == -signal.SIGTERM
        p = subprocess.Popen(["sh", "-c", "echo $X"], env={"X": "y"}, stdout=subprocess.PIPE,
                             preexec_fn=lambda: None, close_fds=True)
        assert p.communicate()[0] == b"y\\n"
        assert subprocess.run([sys.executable, "-c", "import sys; sys.exit(4)"]).returncode == 4
    """),
    "python-signals": python("""
        import os, select, signal, threading, time
        got = []
        signal.signal(signal.SIGUSR1, lambda n, f: got.append(n))
        me = os.getpid(); assert me > 1
        os.kill(me, signal.SIGUSR1); signal.raise_signal(signal.SIGUSR1)
        assert got == [signal.SIGUSR1] * 2, got
        main = threading.main_thread().ident
        t = threading.Thread(target=signal.pthread_kill, args=(main, signal.SIGUSR1))
        t.start(); t.join(); time.sleep(0.01); assert len(got) == 3
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        pid = os.fork()
        if pid == 0: os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        r, w = os.pipe()
        assert select.select([r], [w], [], 0)[1] == [w]
        p = select.poll(); p.register(w, select.POLLOUT); assert p.poll(0)
    """),
    "python-system": python("""
        import faulthandler, getpass, locale, os, platform, pwd, random, resource, secrets, time
        faulthandler.enable()
        assert len(secrets.token_bytes(16)) == 16 and random.random() < 1
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0
        assert os.uname().sysname == "Linux" and platform.machine()
        assert os.getuid() == os.geteuid() and os.getgid() == os.getegid() and os.getppid() > 0
        assert os.cpu_count() > 0 and os.getpgrp() > 0
        assert time.thread_time() > 0 and time.get_clock_info("monotonic").resolution > 0
        big = bytearray(50_000_000); big.extend(b"x" * 60_000_000); del big
        assert pwd.getpwuid(0).pw_name == "root"
    """),
    "bash-language": bash("""
        f() { local n=$1; echo $((n * 2)); }
        [ "$(f 21)" = 42 ]
        a=(1 2 3); [ ${#a[@]} = 3 ]
        printf 'b\\na\\n' > f; while read -r l; do echo "<$l>"; done < f | grep -c '<' | grep -qx 2
        cat <<< here | grep -q here
        cat <(echo one) <(echo two) | tr -d '\\n' | grep -qx onetwo
        [ -r f ] && [ -w f ] && [ ! -x f ] && [ -d . ]
        (cd / && [ "$PWD" = / ])
        sleep 0.05 & wait $!
        sleep 5 & kill %1 || kill $!; wait $! || [ $? = 143 ]
        trap 'echo bye > bye' EXIT; trap 'u=1' USR1; [ $$ -gt 1 ]; kill -USR1 $$; [ $u = 1 ]
        exec 7> seven; echo x >&7; exec 7>&-; [ -s seven ]
        umask 077; : > private; [ "$(stat -c %a private)" = 600 ]
        read -t 0.05 x < <(sleep 1) || true
        case $(ulimit -n) in *[0-9]*) ;; *) exit 1 ;; esac
        ls -d /u?r > /dev/null; echo {1..3} | wc -w | grep -qx 3
        set -m; sleep 0.01 2> /dev/null & wait $!; set +m
        v=$( (exit 3) || echo $? ); [ $v = 3 ]
        cat << EOF | grep -q 'value 42'
        value $(f 21)
        EOF
    """),
    "sh-commands": sh("""
        x=$(echo a; echo b); [ "$x" = "a
        b" ] || [ -n "$x" ]
        echo one > f; cat f | cat > g; cmp f g
        for i in 1 2 3; do echo $i; done | tail -1 | grep -qx 3
        sleep 0.01 & wait
        [ $$ -gt 1 ]; trap 'got=1' TERM; kill -TERM $$; [ $got = 1 ]
    """),
    "coreutils-files": bash("""
        mkdir -p a/b/c; echo hello > a/f; cp a/f a/g; cp -a a z; cp -r a y; mv a/g a/h; mv y a/
        ln -s f a/soft; [ "$(readlink a/soft)" = f ]
        realpath a/soft | grep 'a/f$' > /dev/null
        chmod 640 a/f; [ "$(stat -c %a a/f)" = 640 ]; chmod -R u+w a
        touch -d '2001-02-03 04:05:06Z' a/f; [ "$(stat -c %Y a/f)" = 981173106 ]; touch a/new
        ls -lR a > listing; grep -q soft listing; find a -name f -type f | grep -q a/f
        find a -type f -print0 | xargs -0 cat > /dev/null
        truncate -s 100000 big; [ "$(stat -c %s big)" = 100000 ]
        dd if=/dev/zero of=zero bs=4k count=25 status=none; split -b 50000 big part.
        [ "$(cat part.* | wc -c)" = 100000 ]
        install -m 755 a/f installed; [ -x installed ]
        t=$(mktemp -p .); d=$(mktemp -d -p .); rmdir "$d"; rm "$t"
        du -s a > /dev/null
        cp zero zero2; cmp zero zero2; rm -r a z; [ ! -e a ]
    """),
    "coreutils-text": bash("""
        seq 1 20000 > n; sort -rn n > s; head -1 s | grep -qx 20000; sort -n < s | cmp - n
        tail -n 2 n | tr '\\n' ' ' | grep -q '19999 20000'; tail -c 6 n > /dev/null
        wc -l < n | grep -qx 20000; cut -c1 n | sort | uniq -c | wc -l | grep -qx 9
        sed -i s/^1$/one/ n; head -1 n | grep -qx one; sed -n 2p n > /dev/null
        awk '{ s += $1 } END { print s }' n | grep -q 200009999
        paste -d, n n | tee t | wc -l > /dev/null; join <(sort n) <(sort n) > /dev/null
        sha256sum n > sum; sha256sum -c sum > /dev/null; md5sum n > /dev/null
        seq 1 300000 | sort -rn --parallel=2 -S 100M > s; tail -n 1 s | grep -qx 1
        base64 n | base64 -d | cmp - n; od -c n | tail -2 > /dev/null
        gzip -k n; gunzip -c n.gz | cmp - n; diff n t > /dev/null || [ $? = 1 ]
        comm -12 n n > /dev/null; tac n | rev > /dev/null; expr 2 + 3 > /dev/null
        date -u -d @0 +%Y | grep -qx 1970; grep -rc 1 . > /dev/null
    """),
    "coreutils-system": bash("""
        id > /dev/null; uname -a > /dev/null; nproc > /dev/null; env -i A=b env | grep -qx A=b
        whoami > /dev/null || true; hostname > /dev/null 2>&1 || true; pwd -P > /dev/null
        timeout 5 true; s=0; timeout 0.05 sleep 5 || s=$?; [ $s = 124 ]
        nohup true 2> /dev/null; sleep 0.01; date > /dev/null; tty > /dev/null || true
        ps > /dev/null 2>&1 || true; printenv PATH > /dev/null; setsid true
    """),
}

C_HELLO = r"""
#include <pthread.h>
#include <stdio.h>
static void* run(void* p) { *(int*)p = 42; return p; }
int main(void) {
  pthread_t t; int n = 0;
  pthread_create(&t, 0, run, &n); pthread_join(t, 0);
  printf("%d\n", n);
  return n != 42;
}
"""

BUILD = {
    "gcc": bash(f"""
        cat > h.c <<< $'{C_HELLO.encode("unicode_escape").decode()}'
        gcc -O1 -g -pthread -o h h.c && ./h | grep -qx 42
        gcc -c -pipe h.c && ar rcs libh.a h.o && ranlib libh.a && nm libh.a | grep -q main
        gcc -shared -fPIC -o libh.so h.c && strip h && objdump -d h > /dev/null
    """),
    "make": bash("""
        printf 'all: x y\\nx y: ; sleep 0.01; echo $@ > $@\\nclean: ; rm -f x y\\n' > Makefile
        make -s -j2; cat x y | tr -d '\\n' | grep -q xy; make -s; make -s clean; [ ! -e x ]
    """),
    "git": bash("""
        export HOME=$PWD GIT_AUTHOR_DATE=@1000000000 GIT_COMMITTER_DATE=@1000000000
        git init -q -b main r; cd r
        git config user.name n; git config user.email n@example.org
        echo a > a; git add a; git commit -qm one; git checkout -qb side; echo b >> a
        git commit -qam two; git checkout -q main; git merge -q --no-edit side
        git log --oneline | wc -l | grep -qx 2; git diff HEAD~1 | grep -q '+b'; git status --short
        git tag t; git stash list; git rm -q a; git reset -q --hard; git gc -q; git fsck
        git clone -q . ../copy; cd ../copy; git log -1 --format=%s | grep -qx two
        git fetch -q; git grep -q b
    """),
    "tar": bash("""
        mkdir -p t/u; echo x > t/u/x; ln -s x t/u/l; ln t/u/x t/u/h; mkfifo t/p; chmod 750 t/u
        tar czf t.tgz t; tar cJf t.txz t; tar cf t.tar t; tar tf t.tgz > l; grep -q t/u/x l
        mkdir o; tar xzpf t.tgz -C o; [ -p o/t/p ] && [ -L o/t/u/l ] && [ "$(stat -c %a o/t/u)" = 750 ]
        tar xJf t.txz -C o; tar rf t.tar t/u/x; xz -T2 -k t.tar; xz -t t.tar.xz
    """),
    "asyncio": python("""
        import asyncio, socket, sys
        async def echo(r, w):
            w.write(await r.readline()); await w.drain(); w.close()
        async def main():
            server = await asyncio.start_server(echo, "127.0.0.1", 0)
            host, port = server.sockets[0].getsockname()
            r, w = await asyncio.open_connection(host, port)
            assert w.get_extra_info("peername") == (host, port)
            w.write(b"hi\\n"); assert await r.readline() == b"hi\\n"; w.close()
            server.close()
            server = await asyncio.start_unix_server(echo, "sock")
            r, w = await asyncio.open_unix_connection("sock")
            w.write(b"yo\\n"); assert await r.readline() == b"yo\\n"; w.close()
            server.close()
            p = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
            assert (await p.communicate(b"in"))[0] == b"in"
            try: await asyncio.wait_for(asyncio.sleep(9), 0.01)
            except asyncio.TimeoutError: pass
            assert await asyncio.to_thread(lambda: 5) == 5
            loop = asyncio.get_running_loop(); loop.add_signal_handler(10, print)
            assert await loop.getaddrinfo("127.0.0.1", 80)
        asyncio.run(main())
    """),
    "sockets": python("""
        import http.server, socket, threading, urllib.request, subprocess, select
        s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
        threading.Thread(target=s.serve_forever, daemon=True).start()
        open("page", "w").write("text" * 100000)
        with urllib.request.urlopen(f"http://127.0.0.1:{s.server_port}/page") as r:
            assert len(r.read()) == 400000
        s.shutdown()
        a, b = socket.socketpair(); a.sendall(b"x"); assert b.recv(1) == b"x"
        socket.send_fds(a, [b"f"], [0]); socket.recv_fds(b, 10, 1)
        u = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); u.bind(("::1", 0))
        v = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); v.sendto(b"d", u.getsockname())
        assert u.recvfrom(10)[0] == b"d"; u.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
        with open("page", "rb") as f:
            threading.Thread(target=lambda: b.recv(500000, socket.MSG_WAITALL)).start()
            a.sendfile(f)
        a.shutdown(socket.SHUT_WR)
    """),
    "multiprocessing": python("""
        import multiprocessing as mp, os
        from multiprocessing import shared_memory
        def square(n): return n * n
        def child(q, lock, event, v):
            with lock: v.value += 1
            q.put(os.getpid()); event.set()
        if __name__ == "__main__":
            with mp.Pool(2) as pool: assert pool.map(square, range(10))[9] == 81
            q, lock, event, v = mp.Queue(), mp.Lock(), mp.Event(), mp.Value("i", 0)
            p = mp.Process(target=child, args=(q, lock, event, v)); p.start()
            assert q.get(timeout=9) == p.pid and event.wait(9); p.join(); assert v.value == 1
            m = shared_memory.SharedMemory(create=True, size=10); m.buf[0] = 7; m.close(); m.unlink()
            a, b = mp.Pipe(); a.send([1]); assert b.recv() == [1]
            with mp.Manager() as manager:
                d = manager.dict(); d["k"] = 1; assert dict(d) == {"k": 1}
            for way in ("forkserver", "spawn"):
                mp.set_start_method(way, force=True)
                p = mp.Process(target=os.getpid); p.start(); p.join(); assert p.exitcode == 0
    """),
    "python-more": python("""
        import fcntl, mmap, os, select, signal, socket, threading, time
        got = []
        signal.signal(signal.SIGALRM, lambda n, f: got.append(n))
        signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(0.05); assert len(got) == 1
        fd = os.open("f", os.O_RDWR | os.O_CREAT); os.ftruncate(fd, 4096)
        fcntl.flock(fd, fcntl.LOCK_EX)
        with mmap.mmap(fd, 4096) as m: m.flush(); m.resize(8192)
        os.fsync(fd); os.symlink("f", "s"); os.link("f", "g"); assert os.stat("g").st_nlink == 2
        assert os.statvfs(".").f_bsize > 0 and os.times().elapsed > 0
        assert len(os.sched_getaffinity(0)) > 0 and isinstance(os.getgroups(), list)
        r, w = os.pipe(); os.set_blocking(r, False)
        with select.epoll() as e: e.register(w, select.EPOLLOUT); assert e.poll(1)
        os.mkfifo("p")
    """),
    "shell-more": bash("""
        seq 1 9 > n; shuf n | sort -n | cmp - n; rev n | rev | cmp - n; sort -R n > /dev/null
        mkfifo p; (cat n > p &); cmp p n; ln n m; df . > /dev/null
        sleep 0.01 & ( ulimit -n 64; [ "$(ulimit -n)" = 64 ] ); wait; flock n true
    """),
    "venv": bash("""
        /usr/bin/python3 -m venv --without-pip v
        v/bin/python -c 'import sys; assert sys.prefix != sys.base_prefix'
    """),
}

# Of CPython's own tests, those that need nothing that the profile refuses.
CPYTHON_TUNED = """
    test_configparser test_csv test_filecmp test_fileinput test_glob test_hashlib
    test_json.test_decode test_json.test_encode_basestring_ascii test_secrets test_select
    test_shelve test_subprocess.RunFuncTestCase test_tempfile test_thread
    test_threading.LockTests test_threading.ThreadTests test_uuid
    test_zipfile.StoredTestsWithSourceFile
"""
CPYTHON_BUILD = """
    test_asyncio.test_streams test_epoll test_fcntl test_httpservers
    test_select test_socketserver test_tempfile
"""

# For each call that a profile lets through, an item that fails without it. What
# `tuned` has, `build` has for the same reason.
WITNESSES = {
    "tuned": {
        "coreutils-files":
            "faccessat fchdir fchmodat getpgrp mkdirat readlink renameat2 symlinkat",
        "coreutils-system": "alarm setpgid",
        "coreutils-text": "exit",
        "python-descriptors": "fchmod fdatasync ftruncate getcwd getdents64 pwrite64",
        "python-files": "access chdir chmod mkdir rename rmdir umask unlink utimensat",
        "python-signals": "clock_nanosleep gettid poll pselect6 set_tid_address tgkill",
        "python-subprocess": "setsid",
        "python-system":
            "clock_gettime getegid geteuid getgid getppid getrusage getuid prlimit64 "
            "sigaltstack uname",
        "python-temporary": "rt_sigprocmask unlinkat",
        "python-threads": "exit_group munmap",
        "sh-commands":
            "arch_prctl clone close dup2 execve fcntl futex getpid kill lseek mmap "
            "mprotect newfstatat openat pipe2 pread64 read rt_sigaction rt_sigreturn "
            "rt_sigsuspend vfork wait4 write",
    },
    "build": {
        "asyncio":
            "accept4 bind connect getpeername getsockname getsockopt listen recvfrom "
            "sendto setsockopt socket socketpair",
        "make": "setresgid setresuid stat",
        "multiprocessing": "recvmsg sendmsg",
        "python-descriptors": "ioctl",
        "python-more":
            "epoll_create1 epoll_ctl epoll_wait fsync getgroups link mremap msync "
            "sched_getaffinity setitimer symlink times",
        "shell-more": "dup dup3 flock getrandom linkat mknodat statfs",
        "sockets": "shutdown",
        "tar": "creat readlinkat",
    },
}
