# frozen_string_literal: true

# Applications that take over the connection, well-behaved and misbehaving.
HEAD = "HTTP/1.1 200 OK\r\nConnection: close\r\nX-From: the-application\r\n\r\n"
HELD = []
COUNT = Queue.new
WAITING = Queue.new

use Rack::Lint if ENV["LINT"]
run lambda { |env|
  # Read the body before the connection is taken over; further bytes belong to the connection.
  body = env["rack.input"].read.to_s
  # An application that does not check `rack.hijack?` calls the object of `rack.early_hints`, which always exists.
  hijack = env["PATH_INFO"] == "/unasked" ? env["rack.early_hints"] : env["rack.hijack"]
  io = hijack.call unless %w[/ /begun].include?(env["PATH_INFO"])
  case env["PATH_INFO"]
  when "/echo"
    raise "not hijack_io" unless env["rack.hijack_io"].equal?(io) || ENV["LINT"]
    Thread.new do
      io.write(HEAD, body)
      loop { io.write(io.readpartial(65_536)) }
    rescue EOFError, Errno::EPIPE, Errno::ECONNRESET
      warn "echo ended"
    ensure
      io.close
    end
  when "/twice"
    begin
      env["rack.hijack"].call
    rescue IOError => error
      io.write(HEAD, error.message)
    end
    io.close
  when "/switch"
    Thread.new do
      seen = [env["REQUEST_METHOD"], env["SERVER_PROTOCOL"], env["HTTP_CONNECTION"], env["HTTP_UPGRADE"],
              env["HTTP_SEC_WEBSOCKET_VERSION"], env["HTTP_SEC_WEBSOCKET_KEY"].unpack1("m0").bytesize]
      io.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" \
               "Sec-WebSocket-Accept: x\r\nX-From: the-application\r\n\r\n", seen.join(" "), "\n\n")
      loop { io.write(io.readpartial(65_536)) }
    rescue EOFError, Errno::EPIPE, Errno::ECONNRESET
      warn "echo ended"
    ensure
      io.close
    end
  when "/refused" then io.write("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
  when "/early" then io.write("HTTP/1.1 100 Continue\r\n\r\n")
  when "/closed" then io.close
  when "/garbage" then io.write("220 ready\r\n\r\n")
  when "/longhead"
    io.write("HTTP/1.1 101 Switching Protocols\r\n")
    Thread.new { loop { io.write("X: y\r\n" * 1000) } rescue io.close }
  when "/never" then HELD << io
  when "/waits"
    WAITING << 1
    warn "waits: #{WAITING.size}"
    Thread.new do
      begin
        io.read
      rescue SystemCallError
        nil
      end
      COUNT << 1
      warn "closed by the server: #{COUNT.size}"
    end
  when "/flood"
    Thread.new do
      io.write(HEAD)
      sent = 0
      loop do
        sent += io.write_nonblock("x" * 65_536)
      rescue IO::WaitWritable
        warn "the flood stands still" unless io.wait_writable(0.2)
      end
    rescue Errno::EPIPE, Errno::ECONNRESET
      warn "flood ended after #{sent}"
    ensure
      io.close
    end
  when "/fail"
    io.write(HEAD, "before it failed")
    io.close
    raise "on purpose, after all"
  when "/die"
    io.write(HEAD)
    Process.kill(:KILL, Process.pid)
  when "/begun" then return [200, { "content-type" => "text/plain" }, ["#{env["rack.hijack?"]} #{env.key?("rack.hijack")}"]]
  else return [200, { "content-type" => "text/plain" }, ["plain"]]
  end
  ENV["LINT"] ? [200, { "content-type" => "text/plain" }, []] : [-1, {}, []]
}
