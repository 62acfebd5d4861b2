# frozen_string_literal: true

# Test application with one path per feature.

# A body that logs when it is closed.
class Lines
  def initialize(*lines)
    @lines = lines
  end

  def each(&block)
    @lines.each(&block)
  end

  def close
    warn "the body was closed"
  end
end

# A body that is a file.
class PathBody
  attr_reader :to_path

  def initialize(path)
    @to_path = path
  end

  def each
    yield "read by the application"
  end

  def close
    warn "the file was closed"
  end
end

def each_body
  Enumerator.new { |pieces| yield pieces }
end

def wait_for(file)
  sleep 0.01 until File.exist?(file)
end

PLACES = Queue.new

PATHS = {
  "/" => ->(_) { [200, { "Content-Type" => "text/plain" }, ["hello from #{Process.pid}"]] },
  "/env" => lambda do |env|
    shown = env.transform_values { |value| value.is_a?(String) || [true, false].include?(value) ? value : value.class }
    [200, {}, shown.sort.map { |name, value| "#{name}=#{value}\n" }]
  end,
  "/spoil" => lambda do |env|
    env.each_value { |value| value << "spoilt" if value.is_a?(String) && !value.frozen? }
    env["my.own"] = "left behind"
    env.delete("rack.errors")
    [200, {}, ["spoilt"]]
  end,
  "/frozen" => ->(env) { [200, {}, [env.keys.all?(&:frozen?) && !env.frozen?].map(&:to_s)] },

  # Responses
  "/fields" => lambda do |_|
    [201, { "Set-Cookie" => "a=1\nb=2", "x-list" => %w[1 2], "X-Number" => 5, :"X-Symbol" => :s, "x-nil" => nil }, %w[a b]]
  end,
  "/status" => ->(env) { [env["QUERY_STRING"], {}, []] },
  "/pieces" => ->(_) { [200, {}, ["a", "", "b", "c" * 100_000]] },
  "/lines" => ->(_) { [200, {}, Lines.new("one\n", "two\n")] },
  "/drip" => lambda do |env|
    [200, {}, each_body { |pieces| pieces << "begun"; wait_for(env["QUERY_STRING"]); pieces << "done" }]
  end,
  "/file" => ->(env) { [200, { "Content-Type" => "text/plain" }, PathBody.new(env["QUERY_STRING"])] },
  "/part" => lambda do |env|
    [200, { "Content-Length" => "23" }, PathBody.new(env["QUERY_STRING"])]
  end,
  "/stream" => lambda do |env|
    [200, {}, lambda do |stream|
      while (piece = env["rack.input"].read(65_536))
        stream << piece
      end
      stream.close
    end]
  end,
  "/kept-stream" => lambda do |_|
    [200, {}, ->(stream) { Thread.new { 3.times { |at| stream.write("#{at}\n") }; stream.close } }]
  end,
  "/hijack" => lambda do |env|
    length = env["CONTENT_LENGTH"].to_i
    [200, { "rack.hijack" => ->(stream) { stream << "got " << stream.read(length); stream.close } }, []]
  end,
  "/hint" => lambda do |env|
    env["rack.early_hints"].call("Link" => "</a.css>; rel=preload\n</b.js>; rel=preload")
    [200, {}, ["hinted"]]
  end,
  "/finished" => lambda do |env|
    env["rack.response_finished"] << ->(*) { warn "finished last" }
    env["rack.response_finished"] << lambda do |inner, status, headers, error|
      warn "finished #{inner["PATH_INFO"]} #{status} #{headers} #{error.inspect}"
      raise "after the end"
    end
    [200, { "x-a" => "b" }, ["soon"]]
  end,

  # Request bodies
  "/echo" => ->(env) { [200, { "x-length" => env["CONTENT_LENGTH"] || "none" }, [env["rack.input"].read]] },
  "/twice" => lambda do |env|
    input = env["rack.input"]
    start = input.read(10)
    input.rewind
    first = input.read
    input.rewind
    again = input.read(10).to_s + input.read
    [200, {}, [first.start_with?(start.to_s) && first == again ? "same #{first.bytesize}" : "different"]]
  end,
  "/gets" => lambda do |env|
    input = env["rack.input"]
    first = input.gets
    [200, {}, [first.inspect, input.enum_for(:each).to_a.inspect, input.gets.inspect, input.read(1).inspect, input.read]]
  end,
  "/count" => lambda do |env|
    bytes = 0
    buffer = +""
    bytes += buffer.bytesize while env["rack.input"].read(65_536, buffer)
    [200, {}, ["#{bytes} bytes"]]
  end,
  "/download" => lambda do |env|
    piece = "x" * 65_536
    [200, {}, each_body { |pieces| (env["QUERY_STRING"].to_i * 16).times { pieces << piece } }]
  end,

  # Failures
  "/errors" => ->(env) { env["rack.errors"].puts("to the log"); puts "to stdout"; [200, {}, ["logged"]] },
  "/text" => ->(_) { [200, {}, "a String is no body"] },
  "/excess" => ->(_) { [200, { "content-length" => "5" }, ["hello", " world"]] },
  "/raise-first" => ->(_) { [200, {}, each_body { |_| raise "before a byte" }] },
  "/raise-at-once" => ->(_) { [200, {}, each_body { |pieces| pieces << "begun"; raise "in the middle" }] },
  "/raise" => ->(_) { raise "on purpose" },
  "/load-error" => ->(_) { require "no/such/file" },
  "/raise-late" => ->(_) { [200, {}, each_body { |pieces| pieces << "begun"; sleep 0.2; raise "in the middle" }] },
  "/raise-closing" => lambda do |_|
    body = Lines.new("answered")
    def body.close = raise("while closing")
    [200, {}, body]
  end,
  "/nothing" => ->(_) {},
  "/split" => ->(_) { [200, { "X-A" => "1\r\nX-B: 2" }, ["split"]] },
  "/exit" => ->(_) { exit },
  # The child exits by unwinding through all callers instead of calling `exit!`.
  "/fork" => lambda do |_|
    child = fork or exit
    Process.wait(child)
    [200, {}, ["the parent's answer, #{$?.exitstatus}"]]
  end,
  "/kill" => ->(_) { Process.kill(:KILL, Process.pid); sleep },

  # Threads
  "/meet" => lambda do |env|
    PLACES << Thread.current
    sleep 0.01 until PLACES.size >= env["QUERY_STRING"].to_i
    [200, {}, ["met #{Process.pid} #{env["rack.multithread"]}"]]
  end,
  "/wait" => ->(env) { warn "waiting"; wait_for(env["QUERY_STRING"]); [200, {}, ["waited"]] },
}.freeze

run lambda { |env|
  path = PATHS[env["PATH_INFO"]]
  path ? path.call(env) : [404, { "Content-Type" => "text/plain" }, ["no #{env["SCRIPT_NAME"]}|#{env["PATH_INFO"]}"]]
}
