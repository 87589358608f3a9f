# Data Models. Changed: TypeScript is Python, an object literal is a call, an optional key a default.
from kakoi.packages.allowlist import AllowlistConfig, InstallRequest, InstallResult

request = InstallRequest(type="npm", package="typescript")
result = InstallResult(
    timestamp="2026-01-28T10:30:00Z",
    type=request.type,
    package=request.package,
    status="success",
    duration_ms=1234,
)
assert result.error is None
for status in ("rejected", "failed"):
    InstallResult(timestamp=result.timestamp, type="pip", package="x", status=status, error="why")
assert AllowlistConfig().of("apt") is AllowlistConfig().apt is None
