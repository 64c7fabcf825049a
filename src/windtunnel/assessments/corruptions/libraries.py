"""The libraries that corrupt images."""

from windtunnel.registry.plugins import Install, Lazy, Library

_PACKAGE = "windtunnel.assessments.corruptions"
LIBRARIES = (
    Library(
        name="imagecorruptions",
        family="corruptions",
        package="imagecorruptions",
        imports=("imagecorruptions",),
        rows=Lazy(f"{_PACKAGE}.rows:IMAGECORRUPTIONS_ROWS"),
        adapter=Lazy(f"{_PACKAGE}.corrupt:corrupt"),
        install=Install("imagecorruptions>=1.1.2", "the common corruptions"),
    ),
    Library(
        name="windtunnel",
        family="corruptions",
        package=None,
        rows=Lazy(f"{_PACKAGE}.rows:OWN_ROWS"),
        adapter=Lazy(f"{_PACKAGE}.built_in:corrupt"),
    ),
    Library(
        name="function",
        family="corruptions",
        package=None,
        rows=Lazy(f"{_PACKAGE}.rows:FUNCTION_ROWS"),
        adapter=Lazy(f"{_PACKAGE}.function:corrupt"),
        row_of=Lazy(f"{_PACKAGE}.rows:function_row"),
    ),
    Library(
        name="folder",
        family="corruptions",
        package=None,
        rows=Lazy(f"{_PACKAGE}.rows:FOLDER_ROWS"),
        adapter=Lazy(f"{_PACKAGE}.folder:corrupt"),
    ),
)
