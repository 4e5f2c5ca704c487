"""Pages in a headless browser, watched: errors of scripts, requests, windows and dialogs are faults."""

from contextlib import contextmanager


@contextmanager
def watched(browser, file, faults=None, **settings):
    """A page opened as a file; in the end it must have done nothing that a report may not.

    `faults` is a list to fill instead, for those who look themselves. No page
    gets anything but itself.
    """
    results = [] if faults is None else faults
    address = file.resolve().as_uri()

    def asked(other):
        if other not in (address, "about:blank"):
            results.append(f"request: {other}")

    with browser.new_context(offline=True, **settings) as context:
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: results.append(f"script error: {error}"))
        page.on("console", lambda message: results.append(f"console {message.type}: {message.text}"))
        page.on("request", lambda request: asked(request.url.partition("?")[0]))
        page.on("popup", lambda other: results.append(f"window: {other.url}"))
        page.on("dialog", lambda dialog: (results.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(address)
        yield page
        page.wait_for_timeout(50)  # what the last click set off may take a moment
    if faults is None:
        assert not results, "the page did what no report may do"


UNREADABLE = """() => {
  const pixel = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true })
  const once = (map, key, make) => map.get(key) ?? map.set(key, make(key)).get(key)
  const colours = new Map(), grounds = new Map()
  const rgba = colour => once(colours, colour, painted)
  const painted = colour => {
    pixel.clearRect(0, 0, 1, 1)
    pixel.fillStyle = colour
    pixel.fillRect(0, 0, 1, 1)
    const [r, g, b, a] = pixel.getImageData(0, 0, 1, 1).data
    return [r, g, b, a / 255]
  }
  const over = ([r, g, b, a], ground) => [r, g, b].map((part, i) => part * a + ground[i] * (1 - a))
  const light = colour => {
    const [r, g, b] = colour.map(part => (part /= 255) <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4)
    return .2126 * r + .7152 * g + .0722 * b
  }
  const probe = document.createElementNS('http://www.w3.org/1999/xhtml', 'i')
  probe.style.color = 'Canvas'
  document.documentElement.append(probe)
  const canvas = rgba(getComputedStyle(probe).color).slice(0, 3)
  probe.remove()
  // What an element's text stands on, and how opaque it is.
  const grounded = element => {
    if (!element) return [canvas, 1]
    const [below, opacity] = once(grounds, element.parentElement, grounded)
    const style = getComputedStyle(element)
    return [over(rgba(style.backgroundColor), below), opacity * style.opacity]
  }
  const ratio = (element, colour) => {
    const [ground, opacity] = once(grounds, element, grounded)
    const [r, g, b, a] = rgba(colour)
    const seen = over([r, g, b, a * opacity], ground)
    const [low, high] = [light(seen), light(ground)].sort((a, b) => a - b)
    return (high + .05) / (low + .05)
  }
  const faint = new Set()
  const look = (element, text, colour) => {
    // Dots where no cell is say nothing, and what a filter left out is meant to fade.
    if (!text.trim() || !element.checkVisibility() || element.closest('.none, .out')) return
    const { fontSize, fontWeight } = getComputedStyle(element)
    const large = parseFloat(fontSize) >= 24 || parseFloat(fontSize) >= 18.66 && fontWeight >= 700
    const is = ratio(element, colour)
    const name = `${element.localName}.${element.getAttribute('class') || ''}`
    if (is < (large ? 3 : 4.5)) faint.add(`${is.toFixed(2)}: ${name}: ${text.trim().slice(0, 40)}`)
  }
  const walk = document.createTreeWalker(document.body || document.documentElement, NodeFilter.SHOW_TEXT)
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement, style = getComputedStyle(element)
    if (!['SCRIPT', 'STYLE', 'style', 'title', 'NOSCRIPT'].includes(element.nodeName))
      look(element, walk.currentNode.data, element instanceof SVGElement ? style.fill : style.color)
  }
  for (const element of document.querySelectorAll('input, select')) {
    look(element, 'its value', getComputedStyle(element).color)
    if (element.placeholder) look(element, element.placeholder, getComputedStyle(element, '::placeholder').color)
  }
  return [...faint]
}"""


def unreadable(page):
    """Texts that can be seen and whose contrast WCAG's level AA doesn't allow, each with its ratio."""
    return page.evaluate(UNREADABLE)
