"""The suite that every sandbox must pass, ours and yours.

    pytest --pyargs kakoi.conformance --sandbox docker
    pytest --pyargs kakoi.conformance --sandbox my_package.my_module:factory

Needs pytest and anyio. `subjects.py` says what NAME may be, and what a sandbox can leave
unclaimed; tests of what it does not claim are left out and named in the report.
"""

KNOWN = (
    "host",
    "confined-host",
    "bubblewrap",
    "docker",
    "docker-per-command",
    "podman",
    "podman-per-command",
    "kubernetes",
)
