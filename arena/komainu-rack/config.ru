# The endpoints of HttpArena as a Rack application.
require "json"

ITEMS = JSON.parse(File.read(ENV.fetch("ARENA_DATASET"))).freeze
H2C_PORT = ENV["ARENA_H2C_PORT"]

def parameter(query, name, otherwise = 0)
  found = query.match(/(?:\A|&)#{name}=(-?\d+)/)
  found ? found[1].to_i : otherwise
end

def baseline(env, query)
  total = parameter(query, "a") + parameter(query, "b")
  total += env["rack.input"].read(64).to_i if env["REQUEST_METHOD"] == "POST"
  total.to_s
end

def items(wanted, factor)
  rows = ITEMS.first([wanted, 0].max).map { |item| item.merge("total" => item["price"] * item["quantity"] * factor) }
  JSON.generate("items" => rows, "count" => rows.size)
end

def upload(env)
  size = 0
  while (piece = env["rack.input"].read(65_536))
    size += piece.bytesize
  end
  size.to_s
end

run lambda { |env|
  path = env["PATH_INFO"]
  status = 200
  kind = "text/plain"
  if env["SERVER_PORT"] == H2C_PORT && env["SERVER_PROTOCOL"].start_with?("HTTP/1")
    status, body = 505, "HTTP/2 only\n"
  elsif path == "/baseline11" || path == "/baseline2"
    body = baseline(env, env["QUERY_STRING"])
  elsif path.start_with?("/json/")
    kind, body = "application/json", items(path[6..].to_i, parameter(env["QUERY_STRING"], "m", 1))
  elsif path == "/upload"
    body = upload(env)
  else
    status, body = 404, "not found\n"
  end
  [status, { "content-type" => kind, "content-length" => body.bytesize.to_s }, [body]]
}
