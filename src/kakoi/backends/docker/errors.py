"""A container engine's error output → an error that states the fact and the next step. Pure."""

from kakoi.backends.error_patterns import error_pattern, find_pattern, last_line, redacted_end
from kakoi.errors import EnvironmentUnavailableError, ImagePullError, SandboxError

# {program}, {it} (the image or container in question) and {why} are filled in.
# The order matters: the message of an unreachable engine also matches later patterns.
_ERROR_PATTERNS = (
    error_pattern(
        r"setting rlimit|rlimit_nofile|rlimit_nproc",
        "the {program} engine is not allowed to give a container its default ulimits: {why}",
        'lower them: for podman, `default_ulimits = ["nofile=1024:4096", "nproc=1024:4096"]` below '
        "[containers] in a file that CONTAINERS_CONF names, for docker `default-ulimits` in "
        "daemon.json; or give the engine CAP_SYS_RESOURCE",
    ),
    error_pattern(
        r"permission denied .*(docker|podman)?.*(socket|\.sock)|dial unix .*: permission denied",
        "this user cannot use the {program} engine",
        "sudo usermod -aG docker $USER, then log in again (members of that group are as good as "
        "root); or use rootless podman",
        EnvironmentUnavailableError,
    ),
    error_pattern(
        r"cannot connect to|is the docker daemon running|error during connect|connection refused"
        r"|no such host|i/o timeout|failed to connect to the docker api",
        "no {program} engine answers",
        "sudo systemctl start {program}; `{program} info` shows which address is tried",
        EnvironmentUnavailableError,
    ),
    error_pattern(
        r"no space left on device|disk quota exceeded",
        "the {program} engine has no disk space left",
        "{program} system df shows what uses it; {program} image rm removes unneeded images",
    ),
    error_pattern(
        r"is already in use|name .* in use",
        "there is already a container with the name `{it}`",
        "{program} rm -f {it}, if it is not needed",
    ),
    error_pattern(
        r"no such image|image not known|unable to find image|pull access denied|manifest unknown"
        r"|manifest for .* not found|repository .* not found|failed to resolve reference"
        r"|lookup .* on |TLS handshake|x509|toomanyrequests|unauthorized|connecting to registry",
        "the image `{it}` is not on this machine, and cannot be pulled",
        "{program} pull {it} shows why; {program} image ls shows which are here",
        ImagePullError,
    ),
    error_pattern(
        r"no such container|no container with name|is not running|container state improper"
        r"|can only create exec sessions on running",
        "the container `{it}` is no longer running",
        "{program} inspect {it} shows why",
    ),
    error_pattern(
        r"range of cpus",
        "the machine has fewer CPUs than the limit asks for",
        "lower `limits.cpus`",
    ),
    error_pattern(
        r"minimum memory limit|memory limit .*too (low|small)",
        "the memory limit is lower than the engine allows",
        "raise `limits.memory_bytes` to 64 MiB or more",
    ),
    error_pattern(
        r"cgroup|does not support .* limit",
        "the engine could not set up the limits of a container: {why}",
        "look for missing controllers: `{program} info` warns about them; a machine with cgroup "
        "v2, or an engine that runs as root, has them",
    ),
    error_pattern(
        r"resource temporarily unavailable|can't get final child's pid|cannot fork",
        "the container cannot start another process",
        "end what runs in it, or raise `limits.processes`",
    ),
    error_pattern(
        r"executable file not found|no such file or directory.*(exec|sleep|sh\b)",
        "the image has no `sh` or no `sleep`, and commands need both",
        "use an image with a shell: most have one, `distroless` and `scratch` do not",
    ),
    error_pattern(
        r"unknown (shorthand )?flag|unknown option",
        "this version of {program} is too old: {why}",
        "install {program} 20.10 or newer",
    ),
    error_pattern(
        r"(invalid mount|bind source path does not exist|mounts denied|not shared from the host)",
        "the engine cannot mount the workspace: {why}",
        "the directory must exist on the machine where the engine runs",
    ),
)


def explain(stderr: str, *, program: str, doing: str, about: str = "") -> SandboxError:
    """The error for an engine that failed at `doing` something `about` an image or container."""
    text = redacted_end(stderr)
    why = _last_line(text)
    details = {"program": program, "doing": doing, "stderr": text}
    found = find_pattern(_ERROR_PATTERNS, text)
    if found is not None:
        if found.error is ImagePullError:
            details["image"] = about
        return found.as_error({"program": program, "it": about, "why": why}, details)
    return SandboxError(
        f"{program} failed while {doing}: {why or 'no reason given'}",
        details=details,
        hint=f"`{program} info` and the log of the engine may say more",
    )


def is_conflict(error: BaseException) -> bool:
    """Whether another container already has the name; that container must not be touched."""
    stderr = error.details.get("stderr", "") if isinstance(error, SandboxError) else ""
    return "is already in use" in str(stderr)


def pull_error(image: str, stderr: str, *, program: str) -> ImagePullError:
    """The error for an image that is not present and could not be pulled."""
    text = redacted_end(stderr)
    return ImagePullError(
        f"cannot get the image `{image}`: {_last_line(text) or 'the engine gave no reason'}",
        details={"image": image, "stderr": text},
        hint=f"is the name right, and the registry reachable? {program} pull {image} asks again",
    )


def _last_line(text: str) -> str:
    daemon = r"^(docker: )?Error response from daemon: |^Error: "
    return last_line(text, but=("See '", "Run '"), without=daemon)
