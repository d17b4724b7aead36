"""Pages of the documentation that are printed from tables in the code."""

import difflib
import subprocess

import environment as env

PAGES = {page: env.ROOT / "docs" / f"{page}.md" for page in ("operators", "options")}  # as `tables` calls them


def write(check=False):
    """Writes the pages anew, or fails if that would change one."""
    env.build("virtual", "tables")
    stale = []
    for page, file in PAGES.items():
        command = [env.ROOT / "build" / "virtual" / "tables", page]
        wanted = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        written = file.read_text() if file.exists() else ""
        if written == wanted:
            continue
        if not check:
            file.write_text(wanted)
            print(f"wrote {file.relative_to(env.ROOT)}")
            continue
        stale.append(str(file.relative_to(env.ROOT)))
        for line in difflib.unified_diff(
            written.splitlines(), wanted.splitlines(), "written", "wanted", lineterm="", n=0
        ):
            print(line)
    if stale:
        raise env.Failed(f"{' and '.join(stale)} would change; `./encore docs` writes them")
