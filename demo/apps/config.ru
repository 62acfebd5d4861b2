run ->(_) { [200, { "content-type" => "text/plain" }, ["Hello from Ruby, by Rack\n"]] }
