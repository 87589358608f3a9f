"""What a container engine complains about → an error that says the fact and the next step. Pure."""

from kakoi.errors import EnvironmentUnavailableError, ImagePullError, SandboxError
from kakoi.sandbox.complaints import complaint, end_of, first_of, last_line

# {program}, {it} (what the engine was asked about) and {why} are filled in.
# In this order: an engine that can't be reached says so in words that match later lines, too.
_COMPLAINTS = (
    complaint(
        r"permission denied .*(docker|podman)?.*(socket|\.sock)|dial unix .*: permission denied",
        "this user may not use the {program} engine",
        "sudo usermod -aG docker $USER, then log in again (members of that group are as good as "
        "root); or use rootless podman",
        EnvironmentUnavailableError,
    ),
    complaint(
        r"cannot connect to|is the docker daemon running|error during connect|connection refused"
        r"|no such host|i/o timeout|failed to connect to the docker api",
        "no {program} engine answers",
        "sudo systemctl start {program}; `{program} info` shows which address is tried",
        EnvironmentUnavailableError,
    ),
    complaint(
        r"no space left on device|disk quota exceeded",
        "the {program} engine has no disk space left",
        "{program} system df shows what takes it; {program} image rm removes what is not needed",
    ),
    complaint(
        r"is already in use|name .* in use",
        "there is already a container with the name `{it}`",
        "{program} rm -f {it}, if it is not needed",
    ),
    complaint(
        r"no such image|image not known|unable to find image|pull access denied|manifest unknown"
        r"|manifest for .* not found|repository .* not found|failed to resolve reference"
        r"|lookup .* on |TLS handshake|x509|toomanyrequests|unauthorized|connecting to registry",
        "the image `{it}` is neither here nor to be had",
        "{program} pull {it} shows why; {program} image ls shows which are here",
        ImagePullError,
    ),
    complaint(
        r"no such container|no container with name|is not running|container state improper"
        r"|can only create exec sessions on running",
        "the container `{it}` is not running any more",
        "{program} inspect {it} says what became of it",
    ),
    complaint(
        r"range of cpus",
        "the machine has fewer CPUs than the limit asks for",
        "lower `limits.cpus`",
    ),
    complaint(
        r"minimum memory limit|memory limit .*too (low|small)",
        "the memory limit is lower than the engine takes",
        "raise `limits.memory_bytes` to 64 MiB or more",
    ),
    complaint(
        r"cgroup|does not support .* limit",
        "the engine could not set up the limits of a container: {why}",
        "look for missing controllers: `{program} info` warns about them; a machine with cgroup "
        "v2, or an engine that runs as root, has them",
    ),
    complaint(
        r"resource temporarily unavailable|can't get final child's pid|cannot fork",
        "the container has no room for one more process",
        "end what runs in it, or raise `limits.processes`",
    ),
    complaint(
        r"executable file not found|no such file or directory.*(exec|sleep|sh\b)",
        "the image has no `sh` or no `sleep`, and commands need both",
        "use an image with a shell: most have one, `distroless` and `scratch` do not",
    ),
    complaint(
        r"unknown (shorthand )?flag|unknown option",
        "this version of {program} is too old: {why}",
        "install {program} 20.10 or newer",
    ),
    complaint(
        r"(invalid mount|bind source path does not exist|mounts denied|not shared from the host)",
        "the engine cannot mount the workspace: {why}",
        "the directory must exist on the machine where the engine runs",
    ),
)


def explain(stderr: str, *, program: str, doing: str, about: str = "") -> SandboxError:
    """The error for an engine that failed at `doing` something `about` an image or container."""
    text = end_of(stderr)
    why = _last_line(text)
    details = {"program": program, "doing": doing, "stderr": text}
    found = first_of(_COMPLAINTS, text)
    if found is not None:
        if found.error is ImagePullError:
            details["image"] = about
        return found.as_error({"program": program, "it": about, "why": why}, details)
    return SandboxError(
        f"{program} failed at {doing}: {why or 'it did not say why'}",
        details=details,
        hint=f"`{program} info` and the log of the engine may say more",
    )


def is_conflict(error: BaseException) -> bool:
    """Is it that somebody else's container has the name? Then that one is not to be touched."""
    stderr = error.details.get("stderr", "") if isinstance(error, SandboxError) else ""
    return "is already in use" in str(stderr)


def not_pulled(image: str, stderr: str, *, program: str) -> ImagePullError:
    """The error for an image that is not here and could not be fetched."""
    text = end_of(stderr)
    return ImagePullError(
        f"cannot get the image `{image}`: {_last_line(text) or 'the engine did not say why'}",
        details={"image": image, "stderr": text},
        hint=f"is the name right, and the registry reachable? {program} pull {image} asks again",
    )


def _last_line(text: str) -> str:
    daemon = r"^(docker: )?Error response from daemon: |^Error: "
    return last_line(text, but=("See '", "Run '"), without=daemon)
