// Writes trees.json.gz: what node-glob 7 selects from real package trees, and
// from one tree of odd names. See README.md for how to run it.
//
// It asks the registry that npm is configured with for one package at a time,
// and unpacks each below a temporary folder that it removes at the end.

import { execFileSync } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import zlib from 'node:zlib'
import { createRequire } from 'node:module'

const here = import.meta.dirname
const glob = createRequire(path.join(process.cwd(), 'package.json'))('glob')
const catalogue = process.argv[2]
const largest = 10 << 20 // bytes of a tarball

const work = fs.mkdtempSync(path.join(os.tmpdir(), 'trees-'))
process.on('exit', () => fs.rmSync(work, { recursive: true, force: true }))

// files lists the files below a folder, in the order of their bytes.
function files (folder) {
  return fs.readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter(entry => entry.isFile())
    .map(entry => path.relative(folder, path.join(entry.parentPath, entry.name)))
    .sort()
}

// select returns the files that the pattern selects in the folder, clean; null where
// node-glob throws.
function select (folder, pattern) {
  if (!fs.existsSync(folder)) return []
  try {
    const found = glob.sync(pattern, { cwd: folder, nodir: true })
    return [...new Set(found.map(file => path.normalize(file)))]
      .filter(file => !path.isAbsolute(file) && !file.startsWith('..')).sort()
  } catch (error) {
    return null
  }
}

function realTree (name) {
  const letter = name[0].toLowerCase()
  const json = JSON.parse(fs.readFileSync(path.join(catalogue, 'packages', letter, name + '.json')))
  const { target, fileMap } = json.autoupdate
  const folder = fs.mkdtempSync(path.join(work, 'tree-'))
  const [packed] = JSON.parse(execFileSync('npm', ['pack', '--json', '--pack-destination', folder, target],
    { cwd: work, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }))
  const tarball = path.join(folder, path.basename(packed.filename))
  if (fs.statSync(tarball).size > largest) throw new Error('its tarball is too large')
  const tree = path.join(folder, 'tree')
  fs.mkdirSync(tree)
  execFileSync('tar', ['-xzf', tarball, '-C', tree, '--strip-components=1', '--no-same-permissions'])
  execFileSync('chmod', ['-R', 'u+rwX', tree])
  // Each pattern below its base path and below the root: a package's newest release
  // may have its files elsewhere than the catalogue says.
  const entries = fileMap.flatMap(({ basePath, files }) => files.flatMap(pattern =>
    [...new Set([basePath || '', ''])].map(basePath => ({
      basePath, pattern, selected: select(path.join(tree, basePath), pattern)
    }))))
  const all = files(tree)
  fs.rmSync(folder, { recursive: true })
  return { package: target, version: packed.version, files: all, entries }
}

// oddTree shows where node-glob's walk, minimatch's match and common sense part.
function oddTree () {
  const tree = path.join(work, 'odd')
  const { files: names, patterns } = JSON.parse(fs.readFileSync(path.join(here, 'odd.json')))
  for (const name of names) {
    fs.mkdirSync(path.dirname(path.join(tree, name)), { recursive: true })
    fs.writeFileSync(path.join(tree, name), '')
  }
  const entries = patterns.map(pattern => ({ basePath: '', pattern, selected: select(tree, pattern) }))
  return { package: 'odd', version: '', files: files(tree), entries }
}

const trees = [oddTree()]
for (const name of fs.readFileSync(path.join(here, 'packages.txt'), 'utf8').trim().split('\n')) {
  try {
    trees.push(realTree(name))
    console.log(name, trees.at(-1).version, trees.at(-1).files.length)
  } catch (error) {
    console.log(name, 'left out:', error.message.split('\n')[0])
  }
}
const lines = trees.map(tree => JSON.stringify(tree) + '\n').join('')
fs.writeFileSync(path.join(here, 'trees.json.gz'), zlib.gzipSync(lines, { level: 9 }))
