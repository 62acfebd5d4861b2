# Puma of a shop.
require "etc"

max_threads_count = ENV.fetch("RAILS_MAX_THREADS") { 5 }
min_threads_count = ENV.fetch("RAILS_MIN_THREADS") { max_threads_count }
threads min_threads_count, max_threads_count

worker_timeout 3600 if ENV.fetch("RAILS_ENV", "development") == "development"
port ENV.fetch("PORT", 3000)
bind "unix:///run/shop.sock"
environment ENV.fetch("RAILS_ENV") { "production" }
pidfile "tmp/pids/server.pid"
workers 4
preload_app!
plugin :tmp_restart
stdout_redirect "/var/log/shop.log", "/var/log/shop.err", true
directory "/srv/shop"

on_worker_boot do
  ActiveRecord::Base.establish_connection
end

if ENV["SSL"]
  ssl_bind "0.0.0.0", "9292", key: "a", cert: "b"
end

lowlevel_error_handler { |error| [500, {}, [error.message]] }
bind "ssl://0.0.0.0:9443?key=/etc/shop/key.pem&cert=/etc/shop/cert.pem"
bind "unix:///run/second.sock?umask=0117"
