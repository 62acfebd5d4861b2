# frozen_string_literal: true

module Komainu
  # The argument of a streaming body, or of rack.hijack in the response's headers. It may be kept, and used by other
  # threads; the request ends when it is closed. Reading and writing take turns.
  class Stream
    # Interval in which to check whether the client is still connected while nothing is written, in seconds.
    LOOK_S = 1

    # Calls `callee` with a stream, and waits until that is closed.
    def self.serve(call, input, callee)
      stream = new(call, input)
      callee.call(stream)
      stream.wait_until_closed
    ensure
      stream&.close
    end

    def initialize(call, input)
      @call = call
      @input = input
      @lock = Monitor.new
      @change = @lock.new_cond
      @closed = @read_closed = false
    end

    def read(length = nil, buffer = nil)
      @lock.synchronize do
        must_be_open(@read_closed)
        @input.read(length, buffer)
      end
    end

    def readpartial(length, buffer = nil)
      @lock.synchronize do
        must_be_open(@read_closed)
        @input.readpartial(length, buffer)
      end
    end

    def read_nonblock(length, buffer = nil, exception: true)
      @lock.synchronize do
        must_be_open(@read_closed)
        data = @input.read_nonblock(length, buffer)
        return data if data
        raise EOFError, "the body is at its end" if data.nil? && exception
        raise IO::EAGAINWaitReadable, "read would block" if exception

        data.nil? ? nil : :wait_readable
      end
    end

    def write_nonblock(piece, exception: true)
      @lock.synchronize do
        must_be_open(@closed)
        text = piece.to_s
        taken = @call.write_now(text)
        return taken if taken.positive? || text.empty?
        raise IO::EAGAINWaitWritable, "write would block" if exception

        :wait_writable
      end
    end

    def write(*pieces)
      @lock.synchronize do
        must_be_open(@closed)
        pieces.sum do |piece|
          text = piece.to_s
          @call.write(text)
          text.bytesize
        end
      end
    end

    def <<(piece)
      write(piece)
      self
    end

    # All writes have been sent already.
    def flush
      @lock.synchronize { must_be_open(@closed) }
      self
    end

    def close_read
      @lock.synchronize { @read_closed = true }
      nil
    end

    def close_write
      @lock.synchronize do
        @closed = true
        @change.broadcast
      end
      nil
    end

    def close
      close_read
      close_write
    end

    def closed?
      @closed
    end

    def wait_until_closed
      @lock.synchronize do
        until @closed
          raise Gone, "the client has disconnected" if @call.gone?

          @change.wait(LOOK_S)
        end
      end
    end

    private

    def must_be_open(closed)
      raise IOError, "closed stream" if closed
    end
  end
end
