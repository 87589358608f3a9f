"""The variables that tell programs of the proxy. Who ignores them has no network."""

from collections.abc import Mapping
from typing import Final

from kakoi.runner.outlet import PORT

_HOST: Final = "127.0.0.1"
_URL: Final = f"http://{_HOST}:{PORT}"
_OWN: Final = "localhost,127.0.0.1,::1"
# Not JAVA_TOOL_OPTIONS: every Java program would announce on its standard error that it read it.
_JAVA: Final = " ".join(
    f"-D{scheme}.proxyHost={_HOST} -D{scheme}.proxyPort={PORT}" for scheme in ("http", "https")
)


def proxy_variables() -> Mapping[str, str]:
    """For curl, wget, git, pip, go, node, npm, yarn, cargo, maven, gradle and their like."""
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    url = {each: _URL for name in names for each in (name, name.lower())}
    own = {"NO_PROXY": _OWN, "no_proxy": _OWN}
    npm = {"npm_config_proxy": _URL, "npm_config_https_proxy": _URL, "npm_config_noproxy": _OWN}
    yarn = {"YARN_HTTP_PROXY": _URL, "YARN_HTTPS_PROXY": _URL}
    java = {"MAVEN_OPTS": _JAVA, "GRADLE_OPTS": _JAVA, "SBT_OPTS": _JAVA}
    more = {"CARGO_HTTP_PROXY": _URL, "NODE_USE_ENV_PROXY": "1"}
    return {**url, **own, **npm, **yarn, **java, **more}
