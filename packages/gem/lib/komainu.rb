# frozen_string_literal: true

# The web server Komainu, as a handler of rackup and of `rails server`.
#
# The server loads the application itself, from its config.ru, in worker processes of its own. So this handler only starts the
# server in place of the process that called it, with the same process id.
module Komainu
  PROGRAM = ENV.fetch("KOMAINU") { File.expand_path("../libexec/komainu", __dir__) }

  module Handler
    # Options of `rackup -O NAME=VALUE`, and the flags of `komainu run` that they become.
    FLAGS = {
      Workers: "--workers", WorkerThreads: "--worker-threads", Timeout: "--timeout", MaxRequests: "--max-requests",
      MaxMemory: "--max-memory", BodyMax: "--body-max", Log: "--log", LogLevel: "--log-level", Control: "--control",
      Certificate: "--tls-certificate", Key: "--tls-key", User: "--user"
    }.freeze

    def self.run(_app, **options)
      exec(*command(options))
    end

    def self.command(options)
      host = options[:Host] || "localhost"
      host = "127.0.0.1" if host == "localhost"
      host = "[#{host}]" if host.include?(":") && !host.start_with?("[")
      flags = FLAGS.flat_map { |name, flag| options[name] ? [flag, options[name].to_s] : [] }
      config = File.expand_path(options[:config] || "config.ru")
      raise ArgumentError, "Komainu needs the file of the application: #{config} is not there" unless File.file?(config)

      [PROGRAM, "run", "--listen", "#{host}:#{options[:Port] || 9292}", *flags, config]
    end

    def self.valid_options
      { "Host=HOST" => "Hostname to listen on (default: localhost)", "Port=PORT" => "Port to listen on (default: 9292)" }
        .merge(FLAGS.to_h { |name, flag| ["#{name}=VALUE", "As `komainu run #{flag}`"] })
    end
  end
end
