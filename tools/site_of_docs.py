"""The documentation as a site, of mkdocs.yml: `./encore site`."""

import hashlib
import os
import re
import sysconfig

import environment as env

SITE = env.ROOT / "build" / "site"
REQUIREMENTS = env.ROOT / "requirements-site.txt"
MKDOCS = ("-m", "mkdocs")


def build():
    """Builds it; a link that leads nowhere fails, and so does a page that nothing leads to."""
    env.run(env.PYTHON, *MKDOCS, "build", "--strict", cwd=env.ROOT, env=_variables())
    _check_that_nothing_is_fetched()


def serve(address):
    """Serves it, and builds it anew when a page changes."""
    os.chdir(env.ROOT)
    os.execve(env.PYTHON, [str(env.PYTHON), *MKDOCS, "serve", "--dev-addr", address], _variables())


def _variables():
    folders = [str(_packages()), os.environ.get("PYTHONPATH", "")]
    return env.variables(PYTHONPATH=os.pathsep.join(folders), NO_MKDOCS_2_WARNING="1")


def _packages():
    """Where they lie, apart from those of the tests; installed when first asked for."""
    env.setup()
    key = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    folder = env.ROOT / "build" / f"site-packages-py{sysconfig.get_python_version()}-{key}"
    return env.packages_in(folder, f"what {REQUIREMENTS.name} lists", REQUIREMENTS)


def _check_that_nothing_is_fetched():
    """A reader's browser asks nobody else: no fonts, scripts or styles of other hosts."""
    fetched = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"']?(https?:[^\"' >]+)")
    canonical = re.compile(r"<link\b[^>]*\brel=[\"']?canonical")
    for page in SITE.rglob("*.html"):
        for found in fetched.finditer(page.read_text()):
            if not canonical.match(found[0]):
                raise env.Failed(f"{page.relative_to(SITE)} fetches {found[1]}")
    for style in SITE.rglob("*.css"):
        if outside := re.search(r"url\([\"']?(https?:[^)]+)", style.read_text()):
            raise env.Failed(f"{style.relative_to(SITE)} fetches {outside[1]}")
