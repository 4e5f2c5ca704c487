"""Whether the text of a page can be read at a width: no word is torn, cut off, or beyond the screen."""

TORN = r"""() => {
  // A longer one, such as the name of a commit, is wider than a phone.
  const WORD = /(?<![\p{L}\p{N}])[\p{L}\p{N}]{1,30}(?![\p{L}\p{N}])/gu
  const bad = new Set()
  // The nearest element at or above another whose style is so, kept for the words beside it.
  const nearest = wanted => {
    const passed = new Map()
    const search = element => {
      if (element === document.documentElement) return null
      if (!passed.has(element))
        passed.set(element, wanted(getComputedStyle(element)) ? element : search(element.parentElement))
      return passed.get(element)
    }
    return search
  }
  const scrolls = style => /auto|scroll/.test(style.overflowX)
  const hiding = nearest(style => style.overflowX !== 'visible'), scrolling = nearest(scrolls)
  const range = document.createRange()
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (walk.nextNode()) {
    const node = walk.currentNode, element = node.parentElement
    // What is for screen readers alone is cut on purpose; a line of output may end anywhere.
    if (element.closest('pre, .sr, .visually-hidden, script, style, noscript, select') ||
        !element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue
    const vertical = getComputedStyle(element).writingMode !== 'horizontal-tb'
    for (const word of node.data.matchAll(WORD)) {
      range.setStart(node, word.index)
      range.setEnd(node, word.index + word[0].length)
      const parts = [...range.getClientRects()].filter(part => part.width)
      if (!parts.length) continue
      if (new Set(parts.map(part => Math.round(vertical ? part.left : part.top))).size > 1) bad.add(`torn: ${word[0]}`)
      const { left, right } = range.getBoundingClientRect()
      const hides = hiding(element)
      const edge = hides?.getBoundingClientRect()
      if (hides && !scrolls(getComputedStyle(hides)) && (right > edge.right + 1 || left < edge.left - 1))
        bad.add(`cut: ${word[0]}`)
      if ((right > innerWidth + 1 || left < -1) && !scrolling(element))
        bad.add(`beyond: ${word[0]}`)
    }
  }
  for (const element of document.querySelectorAll('body *'))
    if (scrolls(getComputedStyle(element)) && element.scrollWidth > element.clientWidth + 1 && element.clientWidth &&
        element.checkVisibility() && !element.matches('.scroll, .table, .table-wrapper, pre, textarea'))
      bad.add(`scrolls: ${element.localName}.${element.className}`)
  if (document.documentElement.scrollWidth > innerWidth) bad.add('the page is wider than the screen')
  return [...bad]
}"""


def torn(page):
    """What is wrong with the words that a page shows."""
    return page.evaluate(TORN)
