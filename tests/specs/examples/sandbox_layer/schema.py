# Section 5.2. Changed: the schema of zod is SandboxConfig, which reads a mapping; what it gives for
# a mapping without a value is the schema's default. Without a type it is `auto`, never the host.
from kakoi import ConfigurationError
from kakoi.sandbox import SandboxConfig

config = SandboxConfig.parse({"docker": {}, "containerUse": {}, "host": {}})
assert config.type == "auto"
assert config.fallback is None
assert config.docker.image == "node:20-alpine"
assert config.docker.timeout_s == 300
assert (config.container_use.image, config.container_use.env_id) == ("", "")
assert config.host.timeout_s == 300
assert config.host.warn_on_start is True
for type in ("docker", "container-use", "host"):
    for network in ("none", "bridge", "host"):
        SandboxConfig.parse({"type": type, "fallback": type, "docker": {"network": network}})
for wrong in ({"type": "vm"}, {"fallback": "vm"}, {"docker": {"network": "wifi"}}, {"docker": {"timeout": "x"}}):
    try:
        SandboxConfig.parse(wrong)
    except ConfigurationError as error:
        print(error)
