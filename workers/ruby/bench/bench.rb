# frozen_string_literal: true

# Compares Komainu and Puma: CPU time per request of the whole process tree, and requests per second.
#
#   ruby workers/ruby/bench/bench.rb [--rounds N] [--seconds N] [--connections N,…] [--komainu COMMAND]
#
# Two workers each, persistent connections, alternating; medians of the rounds. Needs wrk, puma and a prior `make build`.
# COMMAND starts another build; PORT and APP in it are replaced by the port and the application.
require "etc"
require "net/http"
require "optparse"
require "socket"
require "tmpdir"

ROOT = File.expand_path("../../..", __dir__)
APP = File.join(__dir__, "app.ru")
HERTZ = Etc.sysconf(Etc::SC_CLK_TCK)
START_S_MAX = 20

options = {
  rounds: 3, seconds: 5, connections: [8, 50, 200],
  komainu: "#{ENV.fetch("CARGO_TARGET_DIR", File.join(ROOT, "target"))}/release/komainu run --listen 127.0.0.1:PORT --workers 2 APP",
}
OptionParser.new do |parser|
  parser.on("--rounds N", Integer)
  parser.on("--seconds N", Integer)
  parser.on("--connections LIST", Array)
  parser.on("--komainu COMMAND")
end.parse!(into: options)
options[:connections] = options[:connections].map(&:to_i)

SUBJECTS = {
  "komainu" => options[:komainu],
  "puma" => "puma --quiet --environment production --workers 2 --threads 1:1 --bind tcp://127.0.0.1:PORT APP",
}.freeze

# A server with the processes it has started.
class Subject
  def initialize(command)
    @port = TCPServer.open("127.0.0.1", 0) { |server| server.addr[1] }
    line = command.gsub("PORT", @port.to_s).gsub("APP", APP)
    @pid = spawn(line, in: File::NULL, out: File::NULL, err: File::NULL)
    deadline = now + START_S_MAX
    until answers?
      raise "#{line} does not answer" if now > deadline

      sleep 0.1
    end
  end

  def url(path)
    "http://127.0.0.1:#{@port}#{path}"
  end

  def cpu_s
    tree(@pid).sum do |pid|
      fields = File.read("/proc/#{pid}/stat").split(") ").last.split
      fields[11].to_i + fields[12].to_i
    end / HERTZ.to_f
  end

  def stop
    Process.kill(:TERM, @pid)
    Process.wait(@pid)
  end

  private

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  def answers?
    Net::HTTP.get_response(URI(url("/"))).is_a?(Net::HTTPOK)
  rescue SystemCallError, EOFError
    false
  end

  def tree(pid)
    children = Dir["/proc/#{pid}/task/*/children"].flat_map { |file| File.read(file).split.map(&:to_i) }
    [pid] + children.flat_map { |child| tree(child) }
  end
end

# CPU time per request in µs, and requests per second.
def measure(subject, path, connections, seconds, folder)
  script = File.join(folder, "post.lua")
  File.write(script, "wrk.method = \"POST\"\nwrk.body = string.rep(\"x\", 10000)\n")
  more = path == "/post" ? ["--script", script] : []
  before = subject.cpu_s
  output = IO.popen(["wrk", "-t1", "-c#{connections}", "-d#{seconds}s", *more, subject.url(path)], &:read)
  spent = subject.cpu_s - before
  raise "not all answers were right: #{output}" if output.include?("Non-2xx")

  requests = output[/(\d+) requests in/, 1].to_i
  [spent * 1e6 / requests, output[%r{Requests/sec:\s+([\d.]+)}, 1].to_f]
end

def median(values)
  values.sort[values.size / 2]
end

rows = options[:connections].map { |connections| ["/", connections] } + [["/json", 50], ["/post", 50]]
results = Hash.new { |hash, key| hash[key] = [] }
Dir.mktmpdir do |folder|
  options[:rounds].times do
    rows.each do |path, connections|
      SUBJECTS.each do |name, command|
        subject = Subject.new(command)
        results[[path, connections, name]] << measure(subject, path, connections, options[:seconds], folder)
      ensure
        subject&.stop
      end
    end
  end
end

puts format("%-7s %11s  %-8s %12s %12s", "path", "connections", "server", "CPU us/req", "requests/s")
rows.each do |path, connections|
  SUBJECTS.each_key do |name|
    cpu, rate = results[[path, connections, name]].transpose.map { |values| median(values) }
    puts format("%-7s %11d  %-8s %12.1f %12.0f", path, connections, name, cpu, rate)
  end
end
