"""The suite that every sandbox must pass, ours and yours.

    pytest --pyargs kakoi.conformance --sandbox docker
    pytest --pyargs kakoi.conformance --sandbox my_package.my_module:factory

Needs pytest and anyio. See `subjects.py` for the names that `--sandbox` accepts and for the traits
that a sandbox claims. Tests of unclaimed traits are left out, and the report lists those traits.
"""

KNOWN = (
    "host",
    "confined-host",
    "bubblewrap",
    "docker",
    "docker-client",
    "docker-per-command",
    "podman",
    "podman-client",
    "podman-per-command",
    "kubernetes",
)
