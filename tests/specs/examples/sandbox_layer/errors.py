# Section 6.2. Changed: the classes are imported instead of declared, and `new` is Python's call.
from kakoi.sandbox import (
    EnvironmentUnavailableError,
    ExecutionTimeoutError,
    ImagePullError,
    SandboxError,
)

environmentType, timeout, image, stderr = "docker", 5000, "node:20-alpine", "no such image"

for error in (
    EnvironmentUnavailableError(environmentType),
    ExecutionTimeoutError(timeout),
    ImagePullError(image, stderr),
):
    assert isinstance(error, SandboxError)
    print(error, error.code, error.details)
