import pytest
from server import DATA, Server


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "file.tar.gz").write_bytes(DATA)
    with Server(folder) as running:
        yield running
        running.shutdown()
