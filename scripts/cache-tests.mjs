#!/usr/bin/env node
// Runs the public tests of HTTP caches (https://cache-tests.fyi) against `komainu run --cache`: scripts/cache-tests.mjs [KOMAINU].
//
// They are looked for beside the repository (../shared/vendor/cache-tests) or in $CACHE_TESTS; without them, or without Node.js 20,
// nothing is run. `cache-tests.txt` names the tests that fail: another one that does fails the run, after two more tries alone.
// Tests of interim responses need the package `undici`; where npm cannot install it, they are left out.

import { spawn, spawnSync } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath, pathToFileURL } from 'node:url'

const UNDICI = 'undici@7.30.2'
const TRIES = 3
const START_MS_MAX = 60_000
const RUN_MS_MAX = 300_000

const scripts = path.dirname(fileURLToPath(import.meta.url))
const source = process.env.CACHE_TESTS ?? path.join(scripts, '../../shared/vendor/cache-tests')
const target = process.env.CARGO_TARGET_DIR ?? path.join(scripts, '../target')
const komainu = process.argv[2] ?? path.join(target, 'debug/komainu')

function skip (why) {
  console.log(`SKIPPED: cache-tests: ${why}`)
  process.exit(0)
}

if (!fs.existsSync(source)) skip(`they are not at ${source}`)
if (parseInt(process.versions.node) < 20) skip(`Node.js ${process.versions.node} is too old`)

// A copy, because packages are installed beside it.
const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'cache-tests-'))
const errors = path.join(folder, 'errors')
const children = []
process.on('exit', code => {
  children.forEach(child => child.kill())
  // What the servers have to say: of passing tests too, of which some break off responses.
  if (code !== 0 && fs.existsSync(errors)) process.stderr.write(fs.readFileSync(errors))
  fs.rmSync(folder, { recursive: true, force: true })
})
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => process.exit(130))
setTimeout(() => { throw new Error(`no end within ${RUN_MS_MAX / 1000} s`) }, RUN_MS_MAX).unref()
for (const part of ['test-engine', 'tests']) {
  const to = path.join(folder, part)
  fs.cpSync(path.join(source, part), to, { recursive: true })
}
spawnSync('chmod', ['-R', 'u+w', folder])
fs.writeFileSync(path.join(folder, 'package.json'), '{ "private": true }\n')
const options = ['install', '--no-audit', '--no-fund', '--ignore-scripts', '--silent', UNDICI]
const installed = spawnSync('npm', options, { cwd: folder, timeout: 60_000, stdio: 'ignore' })
const hasUndici = installed.status === 0
if (!hasUndici) console.log(`SKIPPED: cache-tests of interim responses: npm cannot install ${UNDICI}`)

// Starts a server; its port is in the first line that `pattern` matches.
function start (program, args, env, pattern) {
  const stdio = ['ignore', 'pipe', fs.openSync(errors, 'a')]
  const child = spawn(program, args, { stdio, env: { ...process.env, ...env } })
  children.push(child)
  return new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`${program} does not start`)), START_MS_MAX).unref()
    child.on('error', reject)
    child.on('exit', code => reject(new Error(`${program} has ended: ${code}`)))
    createInterface({ input: child.stdout }).on('line', line => {
      const found = pattern.exec(line)
      if (found) resolve(found[1])
    })
  })
}

const serverEnv = {
  npm_config_protocol: 'http', npm_config_port: '0', npm_config_pidfile: path.join(folder, 'pid')
}
const server = path.join(folder, 'test-engine/server/server.mjs')
const originPort = await start(process.execPath, ['--no-warnings', server], serverEnv, /^Listening on .*:(\d+)\/$/)
// As `run --cache` does, but for 103, which clients of HTTP/1.1 get only where they are known to understand it.
const config = path.join(folder, 'komainu.toml')
fs.writeFileSync(config, `
${process.getuid() === 0 ? 'user = "root"' : ''}
listen = "127.0.0.1:0"
threads = 1
early_hints = "all"
[[route]]
proxy = "http://127.0.0.1:${originPort}"
cache = true
`)
const port = await start(komainu, ['start', '-c', config], {}, new RegExp(`http://127\\.0\\.0\\.1:(?!${originPort}\\b)(\\d+)`))

const load = file => import(pathToFileURL(path.join(folder, file)))
const { default: suites } = await load('tests/index.mjs')
const { runTests } = await load('test-engine/client/runner.mjs')
const { testResults } = await load('test-engine/client/test.mjs')
const needsUndici = test => test.requests.some(request => 'expected_interim_responses' in request)
const tests = suites.flatMap(suite => suite.browser_only ? [] : suite.tests)
  .filter(test => !test.browser_only && (hasUndici || !needsUndici(test)))
const byId = Object.fromEntries(tests.map(test => [test.id, test]))
// A test has passed when those have that it depends on.
const passed = id => testResults[id] === true && (byId[id].depends_on ?? []).every(passed)
const list = fs.readFileSync(path.join(scripts, 'cache-tests.txt'), 'utf8')
const known = new Set(list.split('\n').filter(line => line && !line.startsWith('#')).map(line => line.split(' ')[1]))
// The rest (`check`) says how a cache behaves, and not whether that is right.
const counted = tests.filter(test => test.kind !== 'check')
const worse = () => counted.filter(test => !passed(test.id) && !known.has(test.id))

console.log('     Running public tests of HTTP caches (scripts/cache-tests-0)')
const began = Date.now()
await runTests([{ tests }], false, `http://127.0.0.1:${port}`)
for (let again = 1; again < TRIES && worse().length > 0; again++) {
  for (const test of worse()) {
    console.log(`again, alone: ${test.id}: ${testResults[test.id]}`)
    const needed = [test, ...(test.depends_on ?? []).map(id => byId[id])].filter(each => testResults[each.id] !== true)
    needed.forEach(each => delete testResults[each.id])
    await runTests([{ tests: needed }], false, `http://127.0.0.1:${port}`)
  }
}

for (const kind of ['required', 'optimal']) {
  const all = counted.filter(test => (test.kind ?? 'required') === kind)
  console.log(`${kind}: ${all.filter(test => passed(test.id)).length} of ${all.length}`)
}
for (const test of counted.filter(test => passed(test.id) && known.has(test.id))) {
  console.log(`passes, and is listed as one that fails: ${test.id}`)
}
const failed = worse()
for (const test of failed) console.log(`${test.id}: ${testResults[test.id]}\ntest ${test.id} ... FAILED`)
const [result, one] = failed.length > 0 ? ['FAILED', 0] : ['ok', 1]
const seconds = ((Date.now() - began) / 1000).toFixed(2)
console.log(`test result: ${result}. ${one} passed; ${failed.length} failed; 0 ignored; finished in ${seconds}s`)
process.exit(failed.length > 0 ? 1 : 0)
