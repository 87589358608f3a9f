"""An image that a project has chosen gets no secret of ours, whatever its programs do."""

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
import yaml

from kakoi.backends.adapter import Limits
from kakoi.network.git_credentials import credential_for
from kakoi.tasks.environments import EnvironmentOptions, ExecutionEnvironmentManager
from tests.tasks.hosting import PYTHON, TOKEN, GitServer, a_task, docker, now
from tests.tasks.test_checkout import FORMS, hunt

pytestmark = pytest.mark.anyio
# Every program that we could start there writes down what it was given, and by whom.
SPY = """
FROM {base}
USER root
RUN for name in git tar sh rm env find python3; do \\
      path=$(command -v $name); cp -L $path /usr/bin/real-$name; \\
    done; \\
    for name in git tar rm find; do \\
      path=$(command -v $name); rm -f $path; \\
      printf '#!/bin/bash\\n{{ echo "$0 $*"; /usr/bin/real-env; for f in /proc/[0-9]*/environ; do /usr/bin/real-python3 -c "import sys; print(open(sys.argv[1]).read())" $f; done; }} >>/workspace/tmp/seen 2>/dev/null\\nexec -a %s /usr/bin/real-%s "$@"\\n' $name $name >$path; \\
      chmod 755 $path; \\
    done
"""


@pytest.fixture
def spying_image(engine: None) -> Iterator[str]:
    name = f"kakoi-test-spy:{uuid.uuid4()}"
    text = SPY.format(base=PYTHON)
    docker("build", "--quiet", "--label", "kakoi.owner=test", "--tag", name, "-", stdin=text)
    yield name
    docker("image", "rm", name)


@pytest.mark.requirement("A-038", "A-040")
@pytest.mark.slow("an image is built, and two environments are made")
async def test_the_git_of_an_image_that_a_project_chose_sees_no_token(
    git: GitServer, spying_image: str, owner: str
) -> None:
    docker("exec", git.name, "sh", "-c", MAKE.replace("IMAGE", spying_image))
    # The network of the engine, by which the server of git is reached from inside as well.
    options = EnvironmentOptions(
        image=PYTHON, network="bridge", limits=Limits(cpus=1.0), install_dependencies=False
    )
    tokens = {"GITHUB_PERSONAL_ACCESS_TOKEN": TOKEN, "GITHUB_HOST": f"http://{git.host}"}

    def chosen(files: Mapping[str, bytes]) -> EnvironmentOptions:
        image = yaml.safe_load(files[".kakoi.yaml"])["tasks"]["base_image"]
        return replace(options, image=image)

    manager = ExecutionEnvironmentManager(
        options,
        clock=now,
        owner=owner,
        credential_for=lambda address: credential_for(address, tokens),
        project_files=(".kakoi.yaml",),
        read_project=chosen,
    )
    try:
        task = a_task(git.url(f"private/{spying_image.partition(':')[2]}"))
        async with manager.open(task) as info:
            assert docker("inspect", "-f", "{{.Config.Image}}", info.name) == spying_image
            seen = docker("exec", info.name, "cat", "/workspace/tmp/seen")
            assert "git clone" in seen  # It was asked, and it has looked around.
            assert "PATH=" in seen
            assert [form for form in (*FORMS, "KAKOI_GIT") if form in seen] == []
            assert hunt(info.name) == []
    finally:
        await manager.close()


# A repository on the server, of the name of the image, whose settings choose the image.
MAKE = """
set -e
name=$(echo IMAGE | cut -d: -f2)
git init -q --bare -b main /srv/git/$name.git
work=$(mktemp -d); cd $work; git init -q -b main
printf "tasks: {base_image: 'IMAGE'}\\n" >.kakoi.yaml
git add -A; git -c user.name=a -c user.email=a@b commit -qm x
git push -q /srv/git/$name.git main
"""
