"""`python -m docs.site [DIRECTORY]`: the whole site, or exit status 1 and why not."""

import subprocess
import sys
from pathlib import Path

from docs.site.dead_links import dead_links
from docs.site.pages import ROOT, stage

BUILT = ROOT / "build" / "site"


def main() -> int:
    built = Path(sys.argv[1]) if len(sys.argv) > 1 else BUILT
    pages, html = built / "pages", built / "html"
    stage(pages)
    sphinx = ["-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "--builder", "html"]
    places = ["--conf-dir", "docs/site", "--doctree-dir", str(built / "doctrees"), str(pages)]
    done = subprocess.run([sys.executable, *sphinx, *places, str(html)], cwd=ROOT, check=False)
    if done.returncode:
        return done.returncode
    dead = dead_links(html)
    for page, link in dead:
        print(f"{page}: nothing is at {link}", file=sys.stderr)
    print(
        f"{html / 'index.html'}: {len(list(html.glob('**/*.html')))} pages, {len(dead)} dead links"
    )
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
