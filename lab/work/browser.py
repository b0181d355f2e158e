"""The dashboard's page as a browser shows it: browser.py BROWSER URL MOUNT HITHER PICTURES. The last line counts what passed."""
import base64, json, os, select, subprocess, sys, tempfile, time, traceback

BROWSER, URL, MOUNT, HITHER, PICTURES = sys.argv[1:]
PATIENCE_S = 60
# Names are anybody's.
MARKUP = "<img src=x onerror=document.title='broken'>"
TURNED = "invoice\u202egpj.exe"


class Page:
    """A page of a browser, by the DevTools protocol on two pipes."""

    def __init__(self, profile):
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
                 "--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}"]
        words = ["sh", "-c", f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}', BROWSER, *flags]
        self.process = subprocess.Popen(words, pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self._number, self._rest, self.events, self._session = 0, b"", [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def call(self, method, **params):
        self._number += 1
        asked = {"id": self._number, "method": method, "params": params}
        if self._session:
            asked["sessionId"] = self._session
        os.write(self._out, json.dumps(asked).encode() + b"\0")
        while True:
            said = self._next(PATIENCE_S)
            if said.get("id") == self._number:
                if "error" in said:
                    raise RuntimeError(f"{method}: {said['error']['message']}")
                return said["result"]
            self.events.append(said)

    def _next(self, seconds):
        until = time.monotonic() + seconds
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], max(0, until - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            more = os.read(self._in, 1 << 16)
            if not more:
                raise EOFError("the browser has ended")
            self._rest += more
        one, self._rest = self._rest.split(b"\0", 1)
        return json.loads(one)

    def value(self, script):
        said = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in said:
            raise RuntimeError(said["exceptionDetails"]["text"] + ": " + script)
        return said["result"].get("value")

    def text(self, element):
        return self.value(f"document.getElementById({json.dumps(element)}).textContent")

    def until(self, what, holds):
        end = time.monotonic() + PATIENCE_S

        def now():
            try:
                return holds()
            except RuntimeError:
                return False        # the page is on its way
        while not now():
            if time.monotonic() > end:
                self.picture("failed")
                raise AssertionError(f"not within {PATIENCE_S} s: {what}")
            time.sleep(0.2)

    def picture(self, name):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        with open(os.path.join(PICTURES, name + ".png"), "wb") as out:
            out.write(base64.b64decode(shot["data"]))

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def end(self):
        self.process.kill()
        self.process.wait()


def work():
    """What a program may do: files that are made, read and asked for."""
    os.makedirs(f"{MOUNT}/work", exist_ok=True)
    for name in (MARKUP, TURNED, "plain"):
        with open(f"{MOUNT}/work/{name}", "w") as f:
            f.write(name * 1000)
        os.stat(f"{MOUNT}/work/{name}")
        open(f"{MOUNT}/work/{name}").read()
    for i in range(200):
        try:
            os.stat(f"{MOUNT}/work/absent-{i % 5}")
        except FileNotFoundError:
            pass


def number(text):
    """What the page's `number` made a text of, and how much it may have left out."""
    word, _, unit = text.partition(" ")
    scale = {"": 1, "k": 1e3, "M": 1e6}[unit]
    return float(word) * scale, scale * (0.05 if "." in word else 0.5)


def it_shows_what_goes_on(page):
    page.until("figures", lambda: page.text("saved") not in ("", "–") and "NFS" in page.text("about"))
    assert page.text("title").endswith(" on " + MOUNT), page.text("title")
    assert page.value("document.title").startswith(MOUNT)

    def busy():
        work()
        return page.text("requests") not in ("–", "0") and number(page.text("requests"))[0] > 0
    page.until("requests of programs", busy)
    page.until("paths", lambda: "/work" in page.text("paths") or "work/" in page.text("paths"))
    assert "python3" in page.text("programs"), page.text("programs")
    for element in ("operations", "hits", "connections", "cache"):
        assert page.value(f"document.querySelectorAll('#{element} tr').length") > 1, element
    drawn = page.value("Array.from(document.querySelectorAll('#chart polyline')).map(l => l.getAttribute('points').length)")
    assert len(drawn) == 2 and min(drawn) > 0, drawn
    assert page.value("document.getElementById('trouble').className") == "wide"


def its_figures_are_those_of_stat(page):
    time.sleep(3)       # until nothing moves but the page's own question, which is no call
    said = json.loads(subprocess.run([HITHER, "stat", "--json", MOUNT], check=True, capture_output=True).stdout)
    calls = {o["name"]: o["calls"] for o in said["operations"]}

    def agree():
        shown = page.value("Array.from(document.querySelectorAll('#operations tr')).slice(1).map(r => [r.cells[0].textContent, r.cells[1].textContent])")
        assert shown
        for name, text in shown:
            value, margin = number(text)
            # The lease is renewed now and then.
            if name != "SEQUENCE" and abs(value - calls.get(name, -1)) > margin:
                return False
        return True
    page.until("the same calls as `hither stat`", agree)


def names_are_text(page):
    def shown():
        work()
        return MARKUP in page.text("paths") and "invoice\ufffdgpj.exe" in page.text("paths")
    page.until("the names", shown)
    assert page.value("document.images.length") == 0
    assert "broken" not in page.value("document.title")


def it_asks_nobody_else(page):
    asked = [e["params"]["request"]["url"] for e in page.events if e.get("method") == "Network.requestWillBeSent"]
    assert len(asked) > 2 and all(url.startswith(URL) for url in asked), asked
    # Nor can a script that got in: the page's policy forbids it.
    other = URL.split("/", 3)[2].replace("127.0.0.1", "127.0.0.2")
    assert page.value(f"fetch('http://{other}/').then(() => 'asked', () => 'refused')") == "refused"
    assert page.value("(() => { const s = document.createElement('script'); s.textContent = 'window.got_in = 1'; document.body.append(s); return window.got_in })()") is None


def it_fits(page):
    for name, width, scheme in (("wide", 1400, "light"), ("dark", 1400, "dark"), ("narrow", 420, "light")):
        page.size(width, 900)
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        time.sleep(0.5)
        page.picture(name)
        assert page.value("document.documentElement.scrollWidth <= window.innerWidth"), f"{name}: wider than its window"
        ground = page.value("getComputedStyle(document.body).backgroundColor")
        light = sum(int(n) for n in ground[4:-1].split(",")) > 3 * 128
        assert light == (scheme == "light"), f"{name}: {ground}"


def nothing_was_wrong(page):
    wrong = []
    for event in page.events:
        if event.get("method") == "Runtime.exceptionThrown":
            wrong.append(event["params"]["exceptionDetails"]["text"])
        # What the last test but one tried was refused aloud.
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["source"] != "security":
            entry = event["params"]["entry"]
            if entry["level"] == "error" and "Content Security Policy" not in entry["text"]:
                wrong.append(entry["text"] + " " + entry.get("url", ""))
    assert not wrong, wrong


def the_end_is_told(page):
    subprocess.run([HITHER, "umount", MOUNT], check=True)
    page.until("the end", lambda: "does not answer" in page.text("trouble"))
    assert page.value("getComputedStyle(document.getElementById('trouble')).display") == "block"
    page.picture("ended")


def main():
    failed, tests = 0, [it_shows_what_goes_on, its_figures_are_those_of_stat, names_are_text, it_fits, it_asks_nobody_else,
                        nothing_was_wrong, the_end_is_told]
    with tempfile.TemporaryDirectory() as profile:
        page = Page(profile)
        try:
            page.size(1400, 900)
            page.call("Page.navigate", url=URL)
            for test in tests:
                try:
                    test(page)
                    print("ok  ", test.__name__.replace("_", " "))
                except Exception:
                    failed += 1
                    print("FAIL", test.__name__.replace("_", " "))
                    traceback.print_exc(file=sys.stdout)
        finally:
            page.end()
    print(f"{len(tests) - failed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
