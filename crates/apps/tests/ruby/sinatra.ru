# frozen_string_literal: true

require "sinatra/base"

class Shop < Sinatra::Base
  set :environment, :production
  get("/") { "hello #{params["name"]}" }
  get("/split/*") { params["splat"].first }
  get("/stream") { stream { |out| 3.times { |at| out << "#{at}\n" } } }
  get("/file") { send_file __FILE__, type: "text/plain" }
  post("/upload") { "#{params["file"][:filename]} #{params["file"][:tempfile].read}" }
  get("/raise") { raise "in Sinatra" }
end

run Shop
