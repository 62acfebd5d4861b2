# frozen_string_literal: true

# Action Cable without Rails, configured like the `async` adapter of config/cable.yml.
require "action_cable"

ActionCable.server.config.cable = { "adapter" => "async" }
ActionCable.server.config.logger = Logger.new($stderr, level: :error)
ActionCable.server.config.disable_request_forgery_protection = true

class EchoChannel < ActionCable::Channel::Base
  def subscribed = stream_from("all")
  def speak(data) = ActionCable.server.broadcast("all", { said: data["text"] })
end

ActionCable.server.config.connection_class = -> { ActionCable::Connection::Base }

run lambda { |env|
  env["PATH_INFO"] == "/cable" ? ActionCable.server.call(env) : [200, { "content-type" => "text/plain" }, ["plain"]]
}
