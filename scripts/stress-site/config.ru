# As stress.psgi.
run lambda { |env|
  query = env["QUERY_STRING"].split("&").to_h { |pair| pair.split("=", 2) }
  id, size, chunks = query["id"], query.fetch("size", 0).to_i, query.fetch("chunks", 1).to_i
  fields = { "content-type" => "text/plain", "x-id" => id }
  if env["REQUEST_METHOD"] == "POST"
    content = env["rack.input"].read.to_s
    next [content.each_line.all? { |line| line == "#{id}\n" } ? 200 : 409, fields, [content.bytesize.to_s]]
  end
  content = ("#{id}\n" * (size / (id.size + 1) + 1))[0, size]
  next [200, fields.merge("content-length" => size.to_s), [content]] if chunks == 1
  pieces = Enumerator.new do |out|
    step = size / chunks + 1
    (0...size).step(step) do |at|
      out << content[at, step]
      sleep 0.001
    end
  end
  [200, fields, pieces]
}
