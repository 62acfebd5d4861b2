# frozen_string_literal: true

module Komainu
  # rack.input of a request with a body, which is read from the channel as the application asks for it.
  class Input
    def initialize(call)
      @call = call
      @held = String.new(capacity: 0) # read, but not asked for yet
    end

    # As IO#read.
    def read(length = nil, buffer = nil)
      data = length ? take(Integer(length)) : take_all
      return data unless buffer

      buffer.replace(data || "")
      data && buffer
    end

    # Some bytes, as soon as there are any; EOFError at the end.
    def readpartial(length, buffer = nil)
      @held << (piece || raise(EOFError, "the body is at its end")) if @held.empty?
      read([length, @held.bytesize].min, buffer)
    end

    # What is there already: nil at the end, false if there is nothing yet.
    def read_nonblock(length, buffer = nil)
      if @held.empty?
        more = piece(:read_now) or return more
        @held << more
      end
      read([length, @held.bytesize].min, buffer)
    end

    def gets
      searched = 0
      until (at = @held.index("\n", searched))
        searched = @held.bytesize
        more = piece or return (take_held unless @held.empty?)
        @held << more
      end
      @held.slice!(0..at)
    end

    def each
      while (line = gets)
        yield line
      end
      self
    end

    def close
      nil
    end

    def binmode?
      true
    end

    def external_encoding
      Encoding::BINARY
    end

    private

    def piece(how = :read)
      @call.public_send(how)
    end

    def take(length)
      raise ArgumentError, "negative length #{length} given" if length.negative?
      return String.new if length.zero?

      while @held.bytesize < length && (more = piece)
        @held << more
      end
      return take_held if @held.bytesize <= length && !@held.empty?

      @held.slice!(0, length) unless @held.empty?
    end

    def take_all
      while (more = piece)
        @held << more
      end
      take_held
    end

    def take_held
      held = @held
      @held = String.new(capacity: 0)
      held
    end
  end

  # As Rack wants it up to version 2: what has been read is kept, in memory or, where it is long, in a file.
  class RewindableInput < Input
    MEMORY_BYTES_MAX = 128 * 1024
    PIECE_BYTES = 64 * 1024

    def initialize(call)
      super
      @kept = nil
      @kept_bytes = 0
      @again = 0 # how much of what is kept has been read since the last rewind
    end

    def rewind
      @held = String.new(capacity: 0)
      @again = 0
      @kept&.rewind
      0
    end

    def close
      @kept.close if @kept.respond_to?(:unlink)
      nil
    end

    private

    def piece(how = :read)
      if @again < @kept_bytes
        data = @kept.read(PIECE_BYTES)
        @again += data.bytesize
        return data
      end
      data = super
      keep(data) if data
      data
    end

    def keep(data)
      @kept ||= StringIO.new(String.new)
      move_to_file if @kept.is_a?(StringIO) && @kept_bytes + data.bytesize > MEMORY_BYTES_MAX
      @kept.write(data)
      @kept_bytes += data.bytesize
      @again = @kept_bytes
    end

    def move_to_file
      require "tempfile"
      file = Tempfile.create("komainu-body", binmode: true)
      File.unlink(file.path)
      file.write(@kept.string)
      @kept = file
    end
  end

  # rack.input of a request without a body; one for all.
  class EmptyInput
    def read(length = nil, buffer = nil)
      buffer&.clear
      return if length && length.positive?

      buffer || String.new
    end

    def readpartial(*)
      raise EOFError, "the request has no body"
    end

    def read_nonblock(*)
      nil
    end

    def gets
      nil
    end

    def each
      self
    end

    def rewind
      0
    end

    def close
      nil
    end

    def binmode?
      true
    end

    def external_encoding
      Encoding::BINARY
    end
  end
end
