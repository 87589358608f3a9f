// Runs commands by Anthropic's sandbox-runtime as its README says: initialise, wrap, spawn.
// A line of JSON in: {id, command, limit_ms}; a line out: {id, code, written}.
import { spawn } from 'node:child_process'
import { createRequire } from 'node:module'
import { createInterface } from 'node:readline'
import { pathToFileURL } from 'node:url'

const [modules, workspace] = process.argv.slice(2)
const found = createRequire(`${modules}/x.js`).resolve('@anthropic-ai/sandbox-runtime')
const { SandboxManager } = await import(pathToFileURL(found))
process.chdir(workspace)
await SandboxManager.initialize({
  network: { allowedDomains: [], deniedDomains: [] },
  filesystem: { denyRead: [], allowWrite: [workspace], denyWrite: [] },
})

async function run({ id, command, limit_ms }) {
  const wrapped = await SandboxManager.wrapWithSandbox(command)
  // A group of its own, so that what the limit ends is more than the first shell.
  const child = spawn(wrapped, { shell: true, detached: true, stdio: ['ignore', 'pipe', 'inherit'] })
  // Counted, not kept: it hands the stream over, and what to keep of it is its caller's affair.
  let written = 0
  child.stdout.on('data', chunk => (written += chunk.length))
  const limit = limit_ms && setTimeout(() => process.kill(-child.pid, 'SIGKILL'), limit_ms)
  child.on(limit_ms ? 'exit' : 'close', code => {
    clearTimeout(limit)
    SandboxManager.cleanupAfterCommand()
    process.stdout.write(JSON.stringify({ id, code, written }) + '\n')
  })
}

process.stdout.write('{"id": 0}\n')
for await (const line of createInterface({ input: process.stdin })) run(JSON.parse(line))
await SandboxManager.reset()
process.exit(0)
