# frozen_string_literal: true

module Komainu
  # rack.input of a request with a body, which is read from the channel when the application asks for it.
  class Input
    PIECE_BYTES = 64 * 1024

    def initialize(call)
      @call = call
      @held = String.new(capacity: 0) # bytes read from the channel and not yet returned
    end

    # Like IO#read.
    def read(length = nil, buffer = nil)
      into = buffer ? buffer.clear.force_encoding(Encoding::BINARY) : String.new(capacity: 0)
      length ? take(Integer(length), into) : take_all(into)
    end

    # Returns some bytes as soon as any are available; raises EOFError at the end.
    def readpartial(length, buffer = nil)
      hold(length) or raise EOFError, "the body is at its end" if @held.empty?
      read([length, @held.bytesize].min, buffer)
    end

    # Returns the bytes that are available without waiting: nil at the end, false if there are none yet.
    def read_nonblock(length, buffer = nil)
      more = !@held.empty? || hold(length, :read_now)
      more && read([length, @held.bytesize].min, buffer)
    end

    def gets
      searched = 0
      until (at = @held.index("\n", searched))
        searched = @held.bytesize
        hold or return (take_held unless @held.empty?)
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

    # Appends bytes of the body and returns their number; nil at the end; false if none are available without waiting.
    def fetch(onto, length, how = :read)
      @call.public_send(how, onto, length)
    end

    def hold(length = PIECE_BYTES, how = :read)
      fetch(@held, length, how)
    end

    def take(length, into)
      raise ArgumentError, "negative length #{length} given" if length.negative?
      return into if length.zero?

      into << (@held.bytesize > length ? @held.slice!(0, length) : take_held) unless @held.empty?
      nil while into.bytesize < length && fetch(into, length - into.bytesize)
      into unless into.empty?
    end

    def take_all(into)
      into << take_held unless @held.empty?
      nil while fetch(into, PIECE_BYTES)
      into
    end

    def take_held
      held = @held
      @held = String.new(capacity: 0)
      held
    end
  end

  # A rewindable input, as Rack 2 requires: bytes that were read are kept in memory, or in a file if there are many.
  class RewindableInput < Input
    MEMORY_BYTES_MAX = 128 * 1024

    def initialize(call)
      super
      @kept = String.new(capacity: 0) # or a File
      @kept_bytes = 0
      @again = 0 # number of kept bytes that were read again since the last rewind
    end

    def rewind
      @held = String.new(capacity: 0)
      @again = 0
      @kept.rewind if @kept.is_a?(File)
      0
    end

    def close
      @kept.close if @kept.is_a?(File)
      nil
    end

    private

    def fetch(onto, length, how = :read)
      return fetch_again(onto, length) if @again < @kept_bytes
      return fetch_to_file(onto, length, how) if @kept.is_a?(File)

      before = onto.bytesize
      count = super or return count
      keep(before.zero? ? onto.dup : onto.byteslice(before, count))
      count
    end

    def fetch_again(onto, length)
      data = @kept.is_a?(File) ? @kept.read([length, PIECE_BYTES].min) : @kept.byteslice(@again, length)
      @again += data.bytesize
      onto << data
      data.bytesize
    end

    # Reuses one string for all pieces, so that large bodies do not create much garbage.
    def fetch_to_file(onto, length, how)
      @piece ||= String.new(capacity: 0)
      @piece.clear
      count = @call.public_send(how, @piece, length) or return count
      keep(@piece)
      onto << @piece
      count
    end

    def keep(data)
      move_to_file if @kept.is_a?(String) && @kept_bytes + data.bytesize > MEMORY_BYTES_MAX
      if @kept.is_a?(File)
        @kept.write(data)
      else
        @kept = @kept_bytes.zero? ? data : @kept << data
      end
      @kept_bytes += data.bytesize
      @again = @kept_bytes
    end

    def move_to_file
      require "tempfile"
      file = Tempfile.create("komainu-body", binmode: true)
      File.unlink(file.path)
      file.write(@kept)
      @kept = file
    end
  end

  # rack.input of all requests without a body.
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
