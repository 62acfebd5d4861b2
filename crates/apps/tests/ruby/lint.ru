# frozen_string_literal: true

# An application behind Rack::Lint, which reports protocol errors of the server and of the application.
TEXT = { "content-type" => "text/plain" }.freeze

use Rack::Lint
run lambda { |env|
  input = env["rack.input"]
  case env["PATH_INFO"]
  when "/echo" then [200, TEXT.dup, [input.read]]
  when "/pieces" then [200, TEXT.dup, [Array.new(3) { input.read(3) }.join, input.read]]
  when "/lines" then [200, TEXT.dup, input.enum_for(:each).to_a]
  when "/gets" then [200, TEXT.dup, [input.gets.inspect]]
  when "/rewind"
    input.read
    input.rewind if input.respond_to?(:rewind)
    [200, TEXT.dup, [input.read(2).to_s]]
  when "/hijack"
    [200, TEXT.merge("rack.hijack" => ->(stream) { stream.write("hijacked"); stream.close }), []]
  when "/hint"
    env["rack.early_hints"].call("link" => "</a.css>; rel=preload")
    [200, TEXT.dup, ["hinted"]]
  when "/nothing" then [204, {}, []]
  else [200, TEXT.dup, env["REQUEST_METHOD"] == "HEAD" ? [] : ["linted"]]
  end
}
