# frozen_string_literal: true

# The application that the benchmark requests.
JSON_TEXT = "{#{Array.new(40) { |at| "\"name#{at}\":\"value #{at}\"" }.join(",")}}".ljust(1024).freeze
TEXT = "text/plain"

run lambda { |env|
  case env["PATH_INFO"]
  when "/json" then [200, { "content-type" => "application/json" }, [JSON_TEXT]]
  when "/post" then [200, { "content-type" => TEXT }, [env["rack.input"].read.bytesize.to_s]]
  else [200, { "content-type" => TEXT }, ["OK " * 10]]
  end
}
