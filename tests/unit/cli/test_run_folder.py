import signal
import subprocess
import sys
from pathlib import Path

from lineclear.cli.run_folder import LOCK_FILE, PREFIX, run_folder

SERVICE = """
import signal, sys
from pathlib import Path
from lineclear.cli.run_folder import run_folder
with run_folder(Path(sys.argv[1])) as folder:
    (folder / "control").touch()
    print(folder, flush=True)
    signal.pause()
"""


def start_service(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    service = subprocess.Popen([sys.executable, "-c", SERVICE, str(parent)], stdout=subprocess.PIPE, text=True)
    assert service.stdout is not None
    return service, Path(service.stdout.readline().strip())


def test_the_folder_is_the_users_alone_and_ends_with_the_service(tmp_path: Path) -> None:
    with run_folder(tmp_path) as folder:
        assert folder.name.startswith(PREFIX)
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "control").touch()
    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_killed_service_is_removed_by_the_next_one(tmp_path: Path) -> None:
    service, folder = start_service(tmp_path)
    with service:
        service.send_signal(signal.SIGKILL)
    assert (folder / "control").exists()
    with run_folder(tmp_path) as mine:
        assert list(tmp_path.iterdir()) == [mine]


def test_the_folder_of_a_running_service_is_left_alone(tmp_path: Path) -> None:
    service, folder = start_service(tmp_path)
    with service:
        with run_folder(tmp_path), run_folder(tmp_path):
            assert (folder / "control").exists()
        assert (folder / LOCK_FILE).exists()
        service.kill()


def test_what_is_not_known_to_be_a_services_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}notes").mkdir()  # of somebody else, or of a service that has not named its lock yet
    (tmp_path / f"{PREFIX}file").touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / LOCK_FILE).touch()
    (tmp_path / f"{PREFIX}link").mkdir()
    (tmp_path / f"{PREFIX}link" / LOCK_FILE).symlink_to(elsewhere / LOCK_FILE)
    before = sorted(tmp_path.rglob("*"))
    with run_folder(tmp_path):
        pass
    assert sorted(tmp_path.rglob("*")) == before
