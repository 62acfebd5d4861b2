# frozen_string_literal: true

# A minimal Rails application with a form.
require "action_controller/railtie"

class Shop < Rails::Application
  config.root = __dir__
  config.eager_load = true
  config.secret_key_base = "0" * 64
  config.hosts.clear
  config.logger = Logger.new($stdout)

  routes.append { post "/form", to: "forms#take" }
end

class FormsController < ActionController::Base
  protect_from_forgery with: :null_session

  def take
    found = [params[:a].to_s.bytesize, request.content_length, request.headers["Transfer-Encoding"] || "none"]
    render plain: found.join(" ")
  end
end

Shop.initialize!
run Shop
