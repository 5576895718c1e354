"""Reading a page as a reader does: its text, and what it refers to."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """Sections with their text, images and table rows."""

    def __init__(self, text):
        super().__init__()
        self.sections, self.addresses, self.rows, self.text = {}, [], {}, ""
        self._section, self._quiet, self._cell = None, False, False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "section":
            self._section = attrs["id"]
            self.sections[self._section] = {"text": "", "images": []}
            self.rows[self._section] = []
        if tag == "img":
            self.sections[self._section]["images"].append(attrs)
        if tag == "tr" and self._section:
            self.rows[self._section].append([])
        if tag == "td":
            self.rows[self._section][-1].append("")
            self._cell = True
        self.addresses += [attrs[key] for key in ("src", "href") if key in attrs]
        self._quiet = tag == "style"

    def handle_endtag(self, tag):
        if tag == "section":
            self._section = None
        if tag == "td":
            self._cell = False
        self._quiet = False

    def handle_data(self, data):
        if self._quiet:
            return
        self.text += data
        if self._section:
            self.sections[self._section]["text"] += data
            if self._cell:
                self.rows[self._section][-1][-1] += data
