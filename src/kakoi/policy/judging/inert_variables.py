"""What a variable in front of a command means for that command: `GREP='sudo id' zgrep x y.gz`.

Any program may take commands, options or files from variables that nobody here knows. So one that
is unknown counts as one that changes what runs, unless its name, its value or the program shows
that it cannot: numbers start no program, and the project's own code does what it wants anyway.
"""

import re
from typing import Final

from kakoi._support.late import pattern
from kakoi.policy.effects.unlisted_options import CALLING_NAME

# Language, time, color, how much is logged, switches, and the settings of an application.
_INERT: Final = pattern(
    r"LANG|LANGUAGE|LC_\w+|TZ|TERM|COLORTERM|COLUMNS|LINES|(?:NO|FORCE|CLICOLOR)_?(?:COLOR|FORCE)|CLICOLOR|CI|V|Q|VERBOSE|QUIET"
    r"|DEBUG|\w*LOG_?LEVEL|(?:RUST|ENV|GO|APP)_LOG|RUST_(?:LIB_)?BACKTRACE|RUST_TEST_\w+|RUST_MIN_STACK|DEBIAN_FRONTEND|PORT|HOST"
    r"|(?:NODE|BABEL|RAILS|RACK|APP|FLASK|MIX|PHX|ROLLUP|VUE|NX|DJANGO|GO|CARGO|DEPLOY)_ENV|ASPNETCORE_\w+|ENV(?:IRONMENT)?"
    r"|(?:GREP|LS|JQ|EXA|EZA)_COLORS?|TIMEFORMAT|TIME_STYLE|QUOTING_STYLE|BLOCK_?SIZE|LESSCHARSET|MANWIDTH|SOURCE_DATE_EPOCH"
    r"|(?:OMP|MKL|OPENBLAS|NUMEXPR|VECLIB|BLIS|RAYON|NUMBA|POLARS|CUDA|NCCL|TF|XLA|TORCH|PYTORCH|JAX|WANDB|TRANSFORMERS)_\w+"
    r"|TOKENIZERS_PARALLELISM|MPLBACKEND|KERAS_BACKEND|QT_QPA_PLATFORM|SDL_\w+DRIVER|DISPLAY|HF_HUB_\w+|HF_(?:TOKEN|DATASETS_OFFLINE)"
    r"|PYTHON(?:DONTWRITEBYTECODE|HASHSEED|IOENCODING|UNBUFFERED|UTF8|FAULTHANDLER|OPTIMIZE|TRACEMALLOC|ASYNCIODEBUG|DEVMODE"
    r"|NOUSERSITE|SAFEPATH|MALLOC|COERCECLOCALE|PROFILEIMPORTTIME|NODEBUGRANGES)"
    r"|PIP_(?:NO_\w+|DISABLE_\w+|DEFAULT_TIMEOUT|RETRIES|PROGRESS_BAR|ROOT_USER_ACTION|CACHE_DIR|BREAK_SYSTEM_PACKAGES)"
    r"|UV_(?:NO_\w+|OFFLINE|LINK_MODE|CONCURRENT_\w+|HTTP_TIMEOUT|FROZEN|LOCKED|PYTHON_PREFERENCE|RESOLUTION|PRERELEASE"
    r"|EXCLUDE_NEWER|CACHE_DIR|COMPILE_BYTECODE)"
    r"|npm_config_(?:loglevel|audit|fund|progress|color|yes|update_notifier|legacy_peer_deps|production|ignore_scripts|offline"
    r"|prefer_offline|engine_strict|save_exact|cache)"
    r"|CARGO_(?:INCREMENTAL|TERM_\w+|BUILD_JOBS|NET_\w+|PROFILE_\w+)|CGO_ENABLED|GO111MODULE|GOOS|GOARCH|GOARM\w*|GOAMD64"
    r"|GOTOOLCHAIN|GODEBUG|GOMAXPROCS|GOGC|GOMEMLIMIT|GOTRACEBACK|GOEXPERIMENT|GOPRIVATE|GOWORK|GOCACHE|GOMODCACHE|GOPATH|GOTMPDIR"
    r"|CTEST_(?:PARALLEL_LEVEL|OUTPUT_ON_FAILURE|PROGRESS_OUTPUT)|CMAKE_(?:BUILD_TYPE|BUILD_PARALLEL_LEVEL|EXPORT_COMPILE_COMMANDS)"
    r"|GTEST_\w+|DOTNET_(?:CLI_\w+|NOLOGO|ENVIRONMENT|gc\w+|SKIP_\w+|ROLL_FORWARD\w*|Tiered\w+)|HYPOTHESIS_PROFILE|XDEBUG_MODE"
    r"|\w*TELEMETRY\w*|DO_NOT_TRACK|(?:SKIP|DISABLE|ENABLE|NO|IS|WITH|TEST|ALLOW)_\w+|USE_(?!BAZEL)\w+|BROWSERSLIST_\w+|HUSKY"
    r"|(?:VITE|REACT_APP|NEXT_PUBLIC|NUXT_PUBLIC|EXPO_PUBLIC|SPRING)_\w+|TS_NODE_(?:TRANSPILE_ONLY|FILES|PROJECT|LOG_ERROR)"
    r"|PG(?:HOST|PORT|USER|DATABASE|PASSWORD|TZ|SSLMODE|APPNAME|CONNECT_TIMEOUT)|MYSQL_PWD|REDISCLI_AUTH|(?:GH|GITHUB|GITLAB)_TOKEN"
    r"|GH_REPO|BUILDKIT_PROGRESS|DESTDIR|PREFIX|XDG_(?:CACHE_HOME|RUNTIME_DIR)|CCACHE_DIR|SCCACHE_DIR|NUGET_PACKAGES|BUNDLE_PATH"
    r"|(?:A|UB|T|L|M)SAN_OPTIONS|ARCH|TARGET|BUILD_?TYPE|VERSION|TAG|COMMIT|BRANCH"
)
# Known names whose value may still name code, a file or an address.
_DJANGO: Final = pattern(r"(?:DJANGO_SETTINGS_MODULE|FLASK_APP|CELERY_APP|DJANGO_CONFIGURATION)")
_MODULE: Final = pattern(r"[\w.-]*(?::\w+)?")
_PLAIN_VALUE: Final = pattern(
    r"[-+]?\d[\d.,]*[a-zA-Z%]?|(?i:true|false|yes|no|on|off|none|always|never|auto|)"
)
_WORD: Final = pattern(r"[\w.+-]+")
_OPTIONS_WITH_FILES: Final = pattern(r"(?:_path|suppressions|dir|include)\w*=")
_FOLDER: Final = pattern(
    r"\w*(?:DIR|PATH|_HOME|CACHE|_FILE|_ROOT|PREFIX|PACKAGES|PROJECT|_CONFIG|CONFIG_FILE|JUSTFILE|GEMFILE)"
)
# Families of names that belong to tools: an unknown member can be anything.
_OF_TOOLS: Final = pattern(
    r"(?i:npm_|yarn_|pnpm_|bun_|corepack|esbuild|swc_|electron|puppeteer|playwright|cypress|chrome|jest_|mocha|eslint|babel_"
    r"|prettier|stylelint)\w*|(?:NODE|PY|GO|CARGO|RUST|PERL|RUBY|GEM|BUND?LE|RAKE|RSPEC|SPEC_|PHP|COMPOSER|DOTNET|MSB|NUGET|JAVA"
    r"|JDK|JVM|MAVEN|MVN|M2|GRADLE|ANT|KOTLIN|SBT|COVERAGE|MYPY|FLAKE8|PYLINT|GUNICORN|UVICORN|WERKZEUG|FLASK|CELERY|DJANGO"
    r"|JUPYTER|IPYTHON|TURBO_|NX_|BAZEL|JUST_|ALEMBIC_|NYC_|CC|CXX|PROTOC|DENO|HEX_|MIX_|TOX|NOX|HATCH|POETRY|PDM|PIPENV|VIRTUAL_ENV|CONDA)\w*"
)
# They run the project's own code, which reads variables of its own.
_PROJECT: Final = frozenset(
    (
        "python python2 python3 pypy3 node nodejs ts-node tsx deno bun ruby php java pytest "
        "py.test npm yarn pnpm npx bunx uv uvx tox nox poetry pdm hatch pipenv rye pixi jest "
        "vitest mocha ava cypress playwright go cargo dotnet mvn mvnw gradle gradlew rspec "
        "rails rake bundle phpunit pest flask django-admin uvicorn gunicorn streamlit next "
        "nuxt vite webpack nx turbo ctest torchrun manage.py alembic celery behave robot "
        "locust unittest nosetests trial nyc c8 karma tap coverage jupyter just"
    ).split()
)
_NO_PROGRAM: Final = frozenset(
    "cd echo printf export mkdir ls cat true set sleep test [ pwd : read".split()
)


def is_inert(name: str, shown: str, program: str) -> bool:
    """Whether `name=shown` in front of `program` cannot change what runs; a path counts as inert.

    `shown` is the value, `\\0` if it is not known. `program` is empty if it is not known.
    """
    if _PLAIN_VALUE.fullmatch(shown) or program in _NO_PROGRAM:
        return True
    if CALLING_NAME.fullmatch(name):
        return False
    if _DJANGO.fullmatch(name):
        return _MODULE.fullmatch(shown) is not None
    if name.endswith("SAN_OPTIONS") and _OPTIONS_WITH_FILES.search(shown):
        return False
    known = name.lower() if name.lower().startswith("npm_config_") else name
    if _INERT.fullmatch(known):
        return True
    if re.fullmatch(r"/(?:usr|opt)/(?!.*(?:bin/|\.\.)).*", shown):
        return True
    if program in ("make", "gmake"):
        return shown == "\0" or _WORD.fullmatch(shown) is not None
    own_code = program in _PROJECT or program.startswith("./") or program.endswith((".py", ".js"))
    return own_code and not _OF_TOOLS.fullmatch(name)


def names_folder(name: str) -> bool:
    """Whether the value of the variable is a folder or file that its program writes or reads."""
    return _FOLDER.fullmatch(name) is not None
