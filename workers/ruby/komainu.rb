# frozen_string_literal: true

require "monitor"
require "rbconfig"

# The Ruby worker of Komainu: loads a Rack application and answers requests with it.
module Komainu
  FOLDER = __dir__
  NATIVE = File.join(FOLDER, "#{RbConfig::CONFIG["ruby_version"]}-#{RbConfig::CONFIG["arch"]}", "komainu.so")

  # Signals that reach the whole process group but are meant for the server.
  SHARED = %w[TERM INT HUP QUIT USR1 USR2].freeze
  # KOMAINU_SIGNAL_WHERE: the server requests stacks before it kills this process; and the limits of its output.
  WHERE = 16
  THREADS_MAX = 64
  NAMED_MAX = 4
  FRAMES_MAX = 100
  private_constant :SHARED, :WHERE, :THREADS_MAX, :FRAMES_MAX

  # The kinds of hooks, in the order in which they run.
  HOOKS = %i[on_load before_fork after_fork on_exit].freeze
  @hooks = HOOKS.to_h { |name| [name, []] }

  # Sockets of connections that the application has hijacked, unless they were garbage-collected.
  @hijacked = ObjectSpace::WeakMap.new
  @hijacked_lock = Mutex.new
  # Interval in which an exiting worker checks whether they are closed, in seconds.
  HIJACKED_LOOK_S = 0.1

  class << self
    # Hooks, for komainu.rb beside the application, and for the application itself:
    #
    #   Komainu.on_load     { … }  the application has been loaded, in the process that loaded it
    #   Komainu.before_fork { … }  in the process that forks workers, before each
    #   Komainu.after_fork  { … }  in each worker, before its first request; also where it was not forked
    #   Komainu.on_exit     { … }  in each worker, after its last request
    HOOKS.each do |name|
      define_method(name) do |&block|
        raise ArgumentError, "Komainu.#{name} wants a block" unless block

        @hooks[name] << block
      end
    end

    # Whether rack.input keeps the bytes that were read, so that it can be rewound; by default true for Rack before
    # version 3, and later for bodies that are kept in memory. Set it to false if large uploads should not pass through a
    # temporary file.
    attr_accessor :rewindable_input

    # Runs the process from its start to its end.
    def run(file)
      load_native
      $stdout.sync = true # stdout is a pipe to the log
      stay
      role = self.begin
      trap(WHERE) { write_stacks }
      app = load_or_leave(file)
      role = prototype if role == :prototype
      work(app) unless role == :leave
    end

    # For the native half: converts headers of any kind to a hash of strings or arrays of strings.
    def fields(headers)
      fields = {}
      headers.each do |name, value|
        next if value.nil?

        name = name.to_s
        if name.start_with?("rack.")
          fields[name] = value
        else
          (fields[name] ||= []).concat(Array(value).map(&:to_s))
        end
      end
      fields
    end

    # For the native half: logs an exception of the application.
    def failed(error, env)
      request = "#{env["REQUEST_METHOD"]} #{env["REQUEST_URI"]}: " if env
      $stderr.puts("#{request}#{shown(error)}")
    end

    # The message of an exception with its backtrace, without frames of this folder and of Ruby's own `require`.
    def shown(error)
      own = ["\tfrom #{__dir__}/", "\tfrom <internal:"]
      error.full_message(highlight: false, order: :top).lines.reject { |line| line.start_with?(*own) }.join
    end

    # For the native half: called when the request has ended.
    def finished(callbacks, env, status, headers, error)
      callbacks.reverse_each do |callback|
        callback.call(env, status, headers, error)
      rescue StandardError => failure
        failed(failure, env)
      end
    end

    # For the native half: runs the callbacks in rack.after_reply, as Puma does.
    def replied(callables, env)
      callables.each do |callable|
        callable.call
      rescue StandardError => failure
        failed(failure, env)
      end
    end

    # For the native half: creates both ends of a hijacked connection. The first one is for the application.
    def socket_pair
      require "socket"
      pair = UNIXSocket.pair
      @hijacked_lock.synchronize { @hijacked[pair.first] = true }
      pair
    end

    private

    def load_native
      unless File.exist?(NATIVE)
        abort("Komainu has no module for ruby #{RUBY_VERSION} (#{RUBY_PLATFORM}), which would be #{NATIVE}; " \
              "#{File.join(FOLDER, "build")} #{RbConfig.ruby} makes it")
      end
      require NATIVE
      require_relative "input"
      require_relative "stream"
    end

    def load_or_leave(file)
      app = load_application(File.expand_path(file))
      run_hooks(:on_load)
      app
    rescue Exception => error # the server waits for the reason in any case
      not_loaded(shown(error))
      exit!(3)
    end

    def load_application(file)
      folder = File.dirname(file)
      use_bundle(folder)
      require "uri" # not before the bundle had its say about it; Rack::Lint expects servers to have loaded it
      hooks = File.join(folder, "komainu.rb")
      load(hooks) if File.exist?(hooks)
      app = file.end_with?(".ru") ? rackup(file) : handler(file)
      raise "#{file} makes no application: #{app.inspect} cannot be called" unless app.respond_to?(:call)

      app
    end

    # Sets up the bundle of the application's directory, or the one named by the environment. If Bundler is missing, its
    # own error is raised.
    def use_bundle(folder)
      gemfile = %w[Gemfile gems.rb].map { |name| File.join(folder, name) }.find { |name| File.exist?(name) }
      ENV["BUNDLE_GEMFILE"] ||= gemfile if gemfile
      require "bundler/setup" if ENV["BUNDLE_GEMFILE"] && !ENV["BUNDLE_GEMFILE"].empty?
    end

    def rackup(file)
      require "rack"
      require "rack/builder"
      app = Rack::Builder.parse_file(file)
      app.is_a?(Array) ? app.first : app # until Rack 3, options came with it
    end

    # Loads a file whose last value, or whose constant App or Handler, is the application. Does not need Rack.
    def handler(file)
      value = eval(File.read(file), TOPLEVEL_BINDING, file) # as a config.ru is read
      return value if value.respond_to?(:call)

      name = %i[App Handler].find { |constant| Object.const_defined?(constant) }
      name ? Object.const_get(name) : value
    end

    def prepare_environment
      before_three = !defined?(::Rack::RELEASE) || ::Rack::RELEASE.to_i < 3
      rewinds = rewindable_input.nil? ? before_three : rewindable_input
      constants = {
        "rack.errors" => $stderr,
        "rack.multithread" => seats > 1,
        "rack.multiprocess" => true,
        "rack.run_once" => false,
        "rack.hijack?" => true,
        "SERVER_SOFTWARE" => "komainu",
      }
      if before_three
        constants["rack.version"] = [1, 3].freeze
      end
      small = rewinds || rewindable_input.nil? ? RewindableInput : Input
      prepare(constants, EmptyInput.new.freeze, rewinds ? RewindableInput : Input, small)
      stream_with(Stream)
    end

    # Forks workers when the server asks for them. Returns in each worker, and once at the end.
    def prototype
      warn_of_threads
      GC.start
      GC.compact if GC.respond_to?(:compact) && !Process.respond_to?(:warmup)
      Process.warmup if Process.respond_to?(:warmup)
      loaded
      while order
        run_hooks(:before_fork)
        return :worker if fork_worker
      end
      :leave
    end

    # Names the threads that were started while the application was loaded: a fork has only the thread that forks.
    def warn_of_threads
      threads = Thread.list - [Thread.current]
      return if threads.empty? || @hooks[:after_fork].any?

      names = threads.first(NAMED_MAX).map(&:inspect).join(", ")
      more = threads.size > NAMED_MAX ? " and #{threads.size - NAMED_MAX} more" : ""
      $stderr.puts(
        "warning: threads that were started while the application was loaded do not run in its workers: " \
        "#{names}#{more}. Start them in Komainu.after_fork, or load the application in each worker: " \
        "preload = false, komainu run --no-preload"
      )
    end

    # Whether this is the worker. Forked twice, so that it becomes the server's own child.
    def fork_worker
      if (between = fork)
        begin
          Process.wait(between)
        rescue Errno::ECHILD # the application ignores SIGCHLD: the kernel has reaped it
        end
        return false
      end
      leave_in_between
      @stays = Process.pid
      born
      true
    rescue SystemCallError => error
      not_forked(error.message)
      false
    end

    # Returns only in the worker; the intermediate process must never continue as a second prototype.
    def leave_in_between
      exit!(0) if fork
    rescue SystemCallError => error
      not_forked(error.message)
      exit!(1)
    end

    def work(app)
      prepare_environment
      seats = Array.new(self.seats) { |index| Seat.new(index) }
      run_hooks(:after_fork)
      loaded
      begin
        seats.size == 1 ? seats.first.serve(app) : serve_in_threads(seats, app)
        wait_for_hijacked
      ensure
        # `timeouts.stop` begins here: for the hooks, and functions registered with at_exit.
        ending
        run_hooks(:on_exit)
      end
    end

    # Waits until the application has closed its hijacked connections; the server enforces the timeout.
    def wait_for_hijacked
      sleep(HIJACKED_LOOK_S) until @hijacked_lock.synchronize { @hijacked.keys.all?(&:closed?) }
    end

    def serve_in_threads(seats, app)
      threads = seats.each_with_index.map do |seat, index|
        Thread.new do
          Thread.current.name = "komainu-#{index}"
          # `exit` in a thread ends the process.
          Thread.current.abort_on_exception = true
          seat.serve(app)
        rescue SystemExit => error
          Thread.main.raise(error)
        end
      end
      threads.each(&:join)
    end

    # Installs handlers with `trap`, because an application that replaces one restores the value that `trap` returned.
    def stay
      @stays = Process.pid
      SHARED.each do |name|
        before = trap(name) { stay_or_end(name) }
        trap(name, before) unless before == "DEFAULT"
      end
    end

    # A process that the application has forked is ended by the signal as usual.
    def stay_or_end(name)
      return if Process.pid == @stays

      trap(name, "SYSTEM_DEFAULT")
      Process.kill(name, Process.pid)
    end

    def write_stacks
      Thread.list.first(THREADS_MAX).each do |thread|
        frames = (thread.backtrace || []).first(FRAMES_MAX).map { |frame| "  #{frame}\n" }
        STDERR.syswrite("process #{Process.pid}, #{thread.name || thread.inspect}:\n#{frames.join}")
      end
    ensure
      Process.kill(:KILL, Process.pid)
    end

    def run_hooks(name)
      @hooks[name].each(&:call)
    end
  end
end
