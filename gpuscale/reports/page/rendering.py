"""HTML from the templates of this package, with Jinja2 (the extra `plots`)."""

from typing import Any

from gpuscale import __version__
from gpuscale.base.errors import require_packages
from gpuscale.reports.page.content import readable


def rendered(template: str, **values: Any) -> str:
    """A template of this package with these values; all texts in them are escaped."""
    require_packages("a page", ("jinja2",))
    # Here, since only who renders needs it.
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gpuscale.reports.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["readable"] = readable
    text: str = environment.get_template(template).render(version=__version__, **values)
    return text
