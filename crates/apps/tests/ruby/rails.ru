# frozen_string_literal: true

# A minimal Rails application.
require "action_controller/railtie"

class Shop < Rails::Application
  config.root = __dir__
  config.eager_load = true
  config.secret_key_base = "0" * 64
  config.hosts.clear
  config.logger = Logger.new($stdout)
  config.consider_all_requests_local = false

  routes.append do
    root to: "home#index"
    post "/echo", to: "home#echo"
    get "/file", to: "home#file"
    get "/cookie", to: "home#cookie"
    get "/raise", to: "home#fail"
  end
end

class HomeController < ActionController::Base
  protect_from_forgery with: :null_session

  def index
    render json: { name: params[:name], path: request.fullpath, host: request.host_with_port }
  end

  def echo
    render plain: request.raw_post
  end

  def file
    send_file __FILE__, type: "text/plain"
  end

  def cookie
    cookies[:a] = "1"
    cookies.signed[:b] = "2"
    head :no_content
  end

  def fail
    raise "on Rails"
  end
end

Shop.initialize!
run Shop
