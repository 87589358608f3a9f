"""Start a server in the background, and send requests to it from the same sandbox."""

from kakoi.sync import Job, Sandbox

SERVER = ["python3", "-u", "-m", "http.server", "8000", "--bind", "127.0.0.1"]
REQUEST = "from urllib.request import urlopen; print(urlopen('{}').read().decode())"


def wait_for(job: Job, words: bytes, timeout: float = 30) -> None:
    """Wait until the output of a job contains these words."""
    output = b""
    while words not in output:
        part = job.read(len(output), wait=timeout)
        if not part.data:
            raise RuntimeError(f"{job.command} did not start: {job.stop().stderr}")
        output += part.data


def main() -> None:
    with Sandbox() as box:  # No network: the server can be reached inside only.
        box.files.write("index.html", "<h1>Hello</h1>")
        server = box.start(SERVER)
        wait_for(server, b"Serving HTTP")
        for page in ("index.html", "missing.html"):
            code = REQUEST.format(f"http://127.0.0.1:8000/{page}")
            result = box.run(["python3", "-c", code], timeout=30)
            print(page, (result.stdout or result.stderr).strip().splitlines()[-1])
        print(server.stop().stderr.count("GET"), "requests,", len(box.jobs()), "job")


if __name__ == "__main__":
    main()
