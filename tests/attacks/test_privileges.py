"""Getting more rights than it was given."""

import pytest

from tests.attacks.conftest import Place

pytestmark = pytest.mark.anyio

ESCAPES = {
    "user namespace": "unshare -U true",
    "root of a namespace": "unshare -r true",
    "mount namespace": "unshare -m true",
    "network namespace": "unshare -n true",
    "pid namespace": "unshare -pf true",
    "tmpfs": "mount -t tmpfs none /tmp",
    "bind": "mount --bind / /tmp",
    "remount": "mount -o remount,rw /",
    "umount": "umount -l /proc",
    "chroot": "chroot / true",
    "namespaces of process 1": "nsenter -t 1 -m true",
    "another user": "setpriv --reuid=0 true",
    "another group": "setpriv --clear-groups true",
    "su": "su -c true root </dev/null",
    "sudo": "sudo -n true",
    "the owner of a file": "touch f && chown 12345 f",
    "limits": "prlimit --nofile=10000000 true",
    "priority": "nice -n -10 true 2>&1 | grep -q annot && false",
    "the clock": "date -s 2000-01-01",
    "the name of the machine": "hostname kakoi-was-here",
    "a network interface": "ip link add kakoi0 type dummy",
    "a kernel module": "modprobe dummy || insmod /lib/modules/dummy.ko",
    "another sandbox": "bwrap --ro-bind / / true",
}


@pytest.mark.parametrize("what", ESCAPES)
async def test_an_attempt_to_get_more_fails(place: Place, what: str) -> None:
    result = await place.bash(ESCAPES[what])
    assert result.exit_code != 0


# The same without the tools, which may look before they ask, or may not be there.
CALLS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
REFUSED = {1, 2, 13, 19, 22, 28, 38}
def attempt(what, value):
    if value != -1 or ctypes.get_errno() not in REFUSED:
        print(what, value, ctypes.get_errno())
for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x08000000, 0x04000000, 0x02000000):
    attempt(f"unshare {flag:x}", libc.unshare(flag))
    attempt(f"clone {flag:x}", libc.syscall(56, flag | 17, 0, 0, 0, 0) or os._exit(0))
for name in ("mnt", "user", "pid", "net"):
    attempt(f"setns {name}", libc.setns(os.open(f"/proc/self/ns/{name}", os.O_RDONLY), 0))
attempt("mount", libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
attempt("umount", libc.umount2(b"/proc", 2))
attempt("pivot_root", libc.syscall(155, b"/tmp", b"/tmp"))
attempt("chroot", libc.chroot(b"/"))
attempt("open_tree", libc.syscall(428, -100, b"/", 1))
attempt("fsopen", libc.syscall(430, b"tmpfs", 0))
attempt("setuid", libc.setuid(0))
attempt("setgid", libc.setgid(0))
attempt("setgroups", libc.setgroups(1, (ctypes.c_uint * 1)(0)))
attempt("swapon", libc.swapon(b"/tmp", 0))
attempt("reboot", libc.reboot(0))
attempt("kexec_load", libc.syscall(246, 0, 0, 0, 0))
attempt("init_module", libc.syscall(175, 0, 0, 0))
attempt("bpf", libc.syscall(321, 0, 0, 0))
attempt("perf_event_open", libc.syscall(298, 0, 0, -1, -1, 0))
attempt("add_key", libc.syscall(248, b"user", b"x", b"y", 1, -3))
attempt("keyctl", libc.syscall(250, 0, -4, 1))
attempt("userfaultfd", libc.syscall(323, 0))
attempt("io_uring_setup", libc.syscall(425, 1, 0))
attempt("open_by_handle_at", libc.syscall(304, -100, 0, 0))
attempt("settimeofday", libc.syscall(164, ctypes.create_string_buffer(16), 0))
attempt("acct", libc.acct(b"/tmp/x"))
attempt("quotactl", libc.syscall(179, 0, 0, 0, 0))
attempt("iopl", libc.syscall(172, 3))
"""


async def test_no_system_call_gives_power(place: Place) -> None:
    assert await place.python(CALLS) == []


async def test_no_capability_is_held_or_can_be_had(place: Place) -> None:
    lines = await place.python("print(open('/proc/self/status').read())")
    found = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    assert found["NoNewPrivs"] == "1"
    assert {found[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Amb")} == {"0" * 16}
    assert set(found["Uid"].split()) != {"0"}
    assert found["Seccomp"] == "2"


async def test_a_setuid_program_gives_nothing(place: Place) -> None:
    """Those of the image or the system: the kernel starts them without their bit."""
    text = """
    import glob, os, stat, subprocess
    tried = 0
    for pattern in ("/usr/bin/*", "/usr/sbin/*", "/usr/lib/*/*", "/bin/*", "/sbin/*"):
        for path in glob.glob(pattern):
            mode = os.stat(path).st_mode if os.path.isfile(path) else 0
            if not mode & (stat.S_ISUID | stat.S_ISGID) or not os.access(path, os.X_OK):
                continue
            null = subprocess.DEVNULL
            process = subprocess.Popen([path], stdin=null, stdout=null, stderr=null)
            try:
                ids = open(f"/proc/{process.pid}/status").read()
                if set(ids.split("Uid:")[1].split()[:4]) == {str(os.getuid())}:
                    tried += 1
                else:
                    print(path)
            finally:
                process.kill()
                process.wait()
    print(tried > 0)
    """
    assert await place.python(text) == ["True"]
